"""CLIP embeddings against open_clip's own preprocessing and forward pass, on random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tiny_clip import TINY, random_model, save_weights

from curator.errors import ModelError
from curator.models.catalogue import ModelEntry
from curator.models.clip_model import BATCH, ClipEncoder, clip_config, embed_texts, prepared


def entry(**values: object) -> ModelEntry:
    made = {"name": "m", "kind": "clip", "about": "", "file": "m.safetensors", "licence": ""}
    return ModelEntry.model_validate(made | values)


def pictures(*sizes: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """Smooth random pictures of some sizes (height, width)."""
    random = np.random.default_rng(5)
    made = []
    for height, width in sizes:
        coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8))
        made.append(np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)))
    return made


SIZES = ((360, 640), (640, 360), (224, 224), (133, 640), (90, 61), (270, 480), (361, 481))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "m.safetensors"
    save_weights(random_model(TINY), path)
    return path


@pytest.fixture(scope="module")
def encoder(tiny: Path) -> ClipEncoder:
    return ClipEncoder(entry(config=TINY, dim=32), tiny, precision="float32", device="cpu")


@pytest.mark.parametrize("size_px", [64, 224])
def test_pictures_are_prepared_as_by_open_clip(size_px: int) -> None:
    """Pins every pixel, for wide, tall, square, odd and small pictures."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    steps = Compose([Resize(size_px, InterpolationMode.BICUBIC), CenterCrop(size_px)])
    for picture in pictures(*SIZES):
        expected = np.asarray(steps(Image.fromarray(picture)))
        np.testing.assert_array_equal(prepared(picture, size_px), expected)


def test_embeddings_of_vit_b_32_are_open_clips_own(tmp_path: Path) -> None:
    """Pins the whole batched path, with two of the layers and more pictures than a batch."""
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = open_clip.get_model_config("ViT-B-32-quickgelu")
    assert clip_config(entry(architecture="ViT-B-32-quickgelu", dim=512)) == config
    config["vision_cfg"]["layers"] = config["text_cfg"]["layers"] = 2
    path = tmp_path / "m.safetensors"
    model = random_model(config, seed=3)
    save_weights(model, path)
    ours = ClipEncoder(entry(config=config, dim=512), path, precision="float32", device="cpu")
    shown = pictures(*SIZES, (240, 320), (320, 240))
    assert len(shown) > BATCH
    preprocess = image_transform_v2(PreprocessCfg(), is_train=False)
    with torch.inference_mode():
        images = torch.stack([preprocess(Image.fromarray(picture)) for picture in shown])
        expected = model.encode_image(images, normalize=True).numpy()
    found = ours.embed([ours.prepare(picture) for picture in shown])
    assert np.abs(found - expected).max() < 1e-3
    assert (np.abs(found - expected).max(axis=1) < 0.01 * np.abs(expected).max(axis=1)).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_an_embedding_does_not_depend_on_the_others(encoder: ClipEncoder) -> None:
    """Pins that neither the fill of a batch nor the place in it shows in what is stored."""
    # The random network tells pictures apart at all.
    shown = [encoder.prepare(picture) for picture in pictures(*SIZES)]
    together = encoder.embed(shown).astype(np.float16)
    for i, picture in enumerate(shown):
        alone = encoder.embed([picture])[0].astype(np.float16)
        np.testing.assert_allclose(alone, together[i], atol=5e-4)
    brighter = np.clip(shown[0].astype(int) + 3, 0, 255).astype(np.uint8)
    a, b, c = encoder.embed([shown[0], brighter, shown[1]])
    assert a @ b > 0.99 > a @ c


@pytest.mark.parametrize("in_background", [False, True])
def test_a_stream_gives_each_picture_once_in_order(
    encoder: ClipEncoder, in_background: bool
) -> None:
    """Pins frames and embeddings of more and of fewer pictures than a batch, and of none."""
    for n_pictures in (0, 3, BATCH, 2 * BATCH + 1):
        shown = pictures(*[(80 + i, 120) for i in range(n_pictures)])
        stream = encoder.stream(in_background=in_background)
        for i, picture in enumerate(shown):
            stream.push(30 * i, picture)
        frames, embeddings = stream.finish()
        assert frames.tolist() == [30 * i for i in range(n_pictures)]
        assert embeddings.dtype == np.float16
        assert embeddings.shape == (n_pictures, 32)
        expected = encoder.embed([encoder.prepare(picture) for picture in shown])
        np.testing.assert_allclose(embeddings, expected, atol=1e-3)
        assert not n_pictures or stream.cpu_s > 0
        assert stream.own_s <= stream.cpu_s


def test_bfloat16_moves_embeddings_little(tiny: Path, encoder: ClipEncoder) -> None:
    """Pins that the fast arithmetic gives the same embeddings for practical purposes."""
    fast = ClipEncoder(entry(config=TINY, dim=32), tiny, precision="bfloat16", device="cpu")
    shown = [encoder.prepare(picture) for picture in pictures(*SIZES)]
    cosines = (fast.embed(shown) * encoder.embed(shown)).sum(axis=1)
    assert cosines.min() > 0.999


def test_prompts_are_embedded_as_by_open_clip_and_the_process_stays_as_it_is(tiny: Path) -> None:
    """Pins text embeddings, the scale of the softmax, and the seed."""
    from open_clip import SimpleTokenizer

    model = random_model(TINY)
    torch.manual_seed(7)
    expected_draw = torch.rand(3)
    torch.manual_seed(7)
    ClipEncoder(entry(config=TINY, dim=32), tiny, device="cpu")
    prompts = ["a photo of a cat", "a road"] * 40
    vectors, scale = embed_texts(entry(config=TINY, dim=32), tiny, prompts)
    assert torch.equal(torch.rand(3), expected_draw)
    with torch.inference_mode():
        expected = model.encode_text(SimpleTokenizer()(prompts[:2]), normalize=True).numpy()
    np.testing.assert_allclose(vectors[-2:], expected, atol=1e-5)
    assert len(vectors) == 80
    assert scale == pytest.approx(float(model.logit_scale.exp().detach()))


def test_weights_of_another_model_are_refused(tiny: Path, tmp_path: Path) -> None:
    """Pins that neither missing nor misshapen layers, nor pickled code, are taken."""
    deeper = TINY | {"vision_cfg": TINY["vision_cfg"] | {"layers": 3}}
    with pytest.raises(ModelError, match=r"holds no m: .*Missing key"):
        ClipEncoder(entry(config=deeper, dim=32), tiny, device="cpu")
    with pytest.raises(ModelError, match="is not a plain CLIP of 33 dimensions"):
        clip_config(entry(config=TINY, dim=33))
    with pytest.raises(ModelError, match="no architecture 'ViT-Z'"):
        clip_config(entry(architecture="ViT-Z", dim=32))
    torch.save({"visual.proj": Path("code")}, tmp_path / "m.bin")
    with pytest.raises(ModelError, match="cannot be read as weights"):
        ClipEncoder(entry(config=TINY, dim=32), tmp_path / "m.bin", device="cpu")


@pytest.mark.needs_gpu
def test_a_gpu_gives_the_same_embeddings(tiny: Path, encoder: ClipEncoder) -> None:
    """Pins float16 on a GPU against float32 on the CPU."""
    gpu = ClipEncoder(entry(config=TINY, dim=32), tiny, device="cuda")
    shown = [encoder.prepare(picture) for picture in pictures(*SIZES)]
    cosines = (gpu.embed(shown) * encoder.embed(shown)).sum(axis=1)
    assert cosines.min() > 0.9995


def test_a_batch_that_does_not_fit_is_halved_and_changes_nothing(
    encoder: ClipEncoder, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [encoder.prepare(picture) for picture in pictures(*SIZES)] * 4
    expected = encoder.embed(shown)
    small = ClipEncoder(entry(config=TINY, dim=32), tiny, precision="float32", device="cpu")
    seen = small._visual.forward

    def limited(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 3:
            raise torch.OutOfMemoryError("made by the test")
        return seen(x)

    monkeypatch.setattr(small._visual, "forward", limited)
    found = small.embed(shown)
    assert small.n_halved == 2
    assert np.abs(found - expected).max() < 1e-5


def test_siglip_sees_whole_pictures_and_gives_its_pooled_vector(tmp_path: Path) -> None:
    """Pins squashed pictures, SigLIP's normalisation and the tower of timm, against open_clip."""
    from open_clip import CustomTextCLIP
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = {
        "embed_dim": 64, "custom_text": True,
        "vision_cfg": {
            "image_size": 160, "timm_model_name": "test_vit", "timm_model_pretrained": False,
            "timm_pool": "map", "timm_proj": "none",
        },
        "text_cfg": TINY["text_cfg"] | {"hf_tokenizer_name": "timm/ViT-B-16-SigLIP"},
    }  # fmt: skip
    torch.manual_seed(5)
    bare = {name: value for name, value in config.items() if name != "custom_text"}
    text = {n: v for n, v in bare["text_cfg"].items() if n != "hf_tokenizer_name"}
    model = CustomTextCLIP(**bare | {"text_cfg": text}).eval()
    path = tmp_path / "m.safetensors"
    save_weights(model, path)
    half = 0.5, 0.5, 0.5
    preprocess = image_transform_v2(
        PreprocessCfg(size=160, mean=half, std=half, resize_mode="squash"), is_train=False
    )
    shown = pictures(*SIZES)
    with torch.inference_mode():
        images = torch.stack([preprocess(Image.fromarray(picture)) for picture in shown])
        expected = torch.nn.functional.normalize(model.encode_image(images), dim=-1).numpy()
    siglip = entry(config=config, dim=64, preparation="siglip")
    for precision, error in (("float32", 1e-3), ("bfloat16", 0.05)):
        ours = ClipEncoder(siglip, path, precision=precision, device="cpu")  # type: ignore[arg-type]
        found = ours.embed([ours.prepare(picture) for picture in shown])
        assert np.abs(found - expected).max() < error
    with pytest.raises(ModelError, match="embeds only pictures here"):
        embed_texts(siglip, path, ["a road"])
