"""Words that reveal failures of captioners: refusals, and talk about the picture itself."""

import re

_WE = r"(?:i|we)(?:'m| am|'re| are)?"
_CANNOT = (
    r"(?:can ?not|can't|could(?: not|n't)|won't|will not|do(?: not|n't)|(?:am |are )?unable to|"
    r"(?:am |are )?not able to)"
)
_TALK = (
    r"(?:assist|help|describe|provide|view|see|watch|fulfil+|comply|process|analy[sz]e|access|"
    r"identify|determine|generate|create|caption|answer|comment|continue|engage|support|discuss|"
    r"fully|accurately|directly|actually|offer|give|have (?:access|the ability|enough|any))"
)

REFUSAL = re.compile(
    rf"\b{_WE} {_CANNOT} {_TALK}\b"
    r"|\bas an? (?:ai|artificial intelligence|(?:large )?language model|vision model)\b"
    r"|^(?:i'm |i am |we are )?(?:so |very |really )?sorry\b[ ,]*(?:but|i|we|this|that|for)\b"
    r"|^(?:unfortunately|regrettably),? (?:i|we|there (?:is|are|was) no)\b"
    r"|^i (?:must |have to )?(?:apologi[sz]e|decline|refuse)\b"
    r"|^my apologies\b"
    r"|\bplease (?:provide|upload|share|attach|send)\b.{0,40}"
    r"\b(?:video|image|frame|clip|file)s?\b"
    r"|\bno (?:video|images?|frames?|clip)s? (?:was|were|is|are|has been|have been) "
    r"(?:provided|attached|uploaded|given|supplied|included|shared)\b"
    r"|\b(?:against|violates?) (?:my|our|the) (?:\w+ )?(?:guidelines|polic(?:y|ies)|principles)\b"
    r"|^(?:很|非常)?(?:抱歉|对不起|對不起)|^(?:我|本人)(?:无法|無法|不能)(?:描述|提供|协助|帮助|查看|回答)"
    r"|^申し訳|^すみませんが|^죄송|^미안하지만"
    r"|^es tut mir leid\b|^entschuldigung, |^ich kann (?:dabei|dir|ihnen|diese\w*|das) .*nicht\b"
    r"|^je suis (?:vraiment )?désolée?\b|^désolée?,"
    r"|^je ne (?:peux|suis) pas (?:en mesure|décrire|vous)"
    r"|^lo siento\b|^no puedo (?:ayudar|describir|proporcionar|ver)\b"
    r"|^(?:me )?desculpe\b|^sinto muito\b|^não posso (?:ajudar|descrever)\b"
    r"|^mi dispiace\b|^non posso (?:aiutar|descriver)"
    r"|^(?:извините|простите|к сожалению, я)|^я не могу (?:помочь|описать)",
    re.IGNORECASE | re.DOTALL,
)
"""Words of a model that declines; for text without quotations."""

PICTURE = r"(?:image|picture|photo|photograph|video|clip|footage|film|frame|sequence|screenshot)s?"
"""Words for the picture itself instead of its content."""

# "The video game shows" and "in the picture frame" name things in the scene.
_NOT_COMPOUND = (
    r"(?![ -](?:games?|calls?|cameras?|walls?|screens?|monitors?|conferences?|booths?|frames?|"
    r"books?|albums?|studios?|stores?|shops?|displays?|gallery|galleries|windows?|shoots?|sets?|crews?|"
    r"on (?:the|a|his|her|its|their)|he|she|they|that|beside|above|behind)\b)"
)
_SHOWS = (
    r"(?:shows?|showing|showcases?|depicts?|captures?|captured|features?|displays?|presents?|"
    r"portrays?|illustrates?|contains?|consists?|conveys?|documents?|focus(?:es)?|highlights?|begins?|"
    r"starts?|opens?|ends?|concludes?|continues?|progresses|transitions?|cuts?|fades?|zooms?|"
    r"appears? to|seems? to|gives?|provides?|offers?|is|are|was|were|has|have|then|also|"
    r"primarily|mainly|clearly)"
)
_THIS = (
    r"(?:the|this|these)(?: (?:provided|given|short|entire|whole|first|second|last|final|next))?"
)

META = re.compile(
    rf"\b{_THIS} (?P<subject>{PICTURE}) {_SHOWS}\b"
    rf"|\b(?:in|throughout|across|during|of|from|by|into|within|to) {_THIS} "
    rf"(?P<place>(?!frame\b|film\b){PICTURE})\b{_NOT_COMPOUND}"
    rf"|(?:^|[.!?,] |giving |gives |lending )(?:the|this) (?P<start>video|image|footage)\b"
    rf"{_NOT_COMPOUND}",
    re.IGNORECASE,
)
"""Talk about the picture, unless a thing with a picture was named before."""

META_ALWAYS = re.compile(
    rf"^(?:this|here|it|the following) (?:is|are) (?:an? |the )?(?:\w+[ -]){{0,2}}{PICTURE}\b"
    r"|^an? (?:\w+[ -]){0,2}(?:image|picture|photo|photograph|video|clip) "
    r"(?:of|showing|that shows)\b"
    # "Aerial footage captures"; "a film crew shows" has another verb.
    rf"|^(?:an? )?(?:[\w-]+ ){{0,3}}{PICTURE} (?:captures?|shows?|showcases?|depicts?|features?)\b"
    r"|\b(?:invit|allow|giv|mak|leav|draw)(?:es?|ing|s) viewers?\b"
    # "With its back to the viewer" and "looks at the viewer" say where.
    r"|(?<!\bat )(?<!\bto )(?<!\btoward )(?<!\btowards )(?<!\bfacing )\bthe viewers?\b"
    r"|^(?:sure|certainly|of course|okay|absolutely|great)\s*[!,.:]"
    r"|^here(?:'s| is| are) (?:an? |the |your |my )?(?:\w+ ){0,3}"
    r"(?:captions?|descriptions?|summary|summaries|json|answers?|response|breakdown|overview)\b"
    r"|^[\W_]*(?:(?:short|medium|long|video|image|detailed) )?"
    r"(?:caption|description|summary|title|answer|response)\b[\W_]*:"
    rf"|\bbased on (?:the|these) (?:\w+ )?(?:{PICTURE}|facts|metadata|information|descriptions?)\b"
    rf"|\bthe (?:provided|given|supplied|described) (?:{PICTURE}|facts|metadata)\b"
    r"|\b(?:according to|as (?:described|stated|noted|mentioned) in) the "
    r"(?:facts|metadata|notes|ocr)\b"
    r"|\bwe (?:can |could |also |then |first |now )*(?:see|observe|witness|notice)\b"
    r"|(?:这|这张|这个|该|本)(?:图片|图像|照片|视频|影片)(?:中|里|展示|显示|是|呈现|描绘|开始)"
    r"|^(?:视频|图片|图像|照片|影片)(?:中|里|展示|显示|开始)"
    r"|(?:この|本)(?:動画|画像|映像|写真|ビデオ)|^(?:動画|画像|映像)(?:では|には|は)"
    r"|(?:이|해당) (?:영상|비디오|동영상|이미지|사진)|^(?:영상|비디오|이미지)(?:은|는|에서|에는)"
    r"|\b(?:das|dieses) (?:bild|video|foto) (?:zeigt|beginnt|stellt)\b"
    r"|\bin diesem (?:video|bild|clip)\b"
    r"|\b(?:l'image|la vidéo|cette (?:image|vidéo)|la photo) (?:montre|présente|commence|illustre)"
    r"|\bdans cette (?:vidéo|image)\b"
    r"|\b(?:la imagen|el v[ií]deo|este v[ií]deo|esta imagen) (?:muestra|presenta|comienza)"
    r"|\ben est[ea] (?:v[ií]deo|imagen)\b"
    r"|\b(?:a imagem|o vídeo|este vídeo) (?:mostra|apresenta|começa)|\bneste vídeo\b"
    r"|\b(?:l'immagine|il video|questo video) (?:mostra|presenta|inizia)|\bin questo video\b"
    r"|(?:на (?:этом )?(?:видео|изображении|фото)|видео показывает|в этом видео)",
    re.IGNORECASE,
)
"""Talk about the picture or to the user, regardless of things named before."""

_ON_SCREEN = (
    r"screens?|tv|televisions?|monitors?|displays?|projectors?|phones?|smartphones?|tablets?|laptops?|"
    r"cinema|slides?|presentations?"
)
_OWN = r"an?|his|her|their|two|three|several|some|other|old|small|large|framed|family|printed"
SHOWING_STILL = re.compile(
    rf"\b(?:{_ON_SCREEN}|posters?|paintings?|portraits?|billboards?|newspapers?|magazines?|books?|"
    r"albums?|canvas|easels?|postcards?|prints?|drawings?|sketch(?:es)?|gallery|"
    rf"(?:{_OWN}) (?:\w+ ){{0,2}}(?:images?|pictures?|photos?|photographs?))\b",
    re.IGNORECASE,
)
"""Things with a picture on them, which a caption may mention."""

SHOWING_MOVING = re.compile(
    rf"\b(?:{_ON_SCREEN}|(?:{_OWN}) (?:\w+ ){{0,2}}(?:videos?|clips?|films?|movies?))\b",
    re.IGNORECASE,
)
"""Things on which a video plays."""

IS_STILL = re.compile(r"(?:image|picture|photo|photograph|screenshot)s?", re.IGNORECASE)

# Names of fields show that the model copied the form.
PLACEHOLDER = re.compile(
    r"(?:n/?a|none|null|nil|unknown|undefined|empty|todo|string|text|caption|description|short|"
    r"medium|long)",
    re.IGNORECASE,
)
"""Words in the place of an empty answer."""

UNFINISHED = re.compile(
    r"\b(?:an?|the|and|or|but|of|his|its|their|my|your|our|into|onto|while|whose|which|because|than|"
    r"very|is|are|was)$"
)
"""English words that end no sentence."""
