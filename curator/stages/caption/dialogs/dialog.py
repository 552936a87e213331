"""Dialogs about windows, independent of the captioner that answers them.

A dialog is a generator. It yields requests that may run at the same time, takes their replies in
the same order, and returns the window's annotation. So questions, checks, repairs and judgement are
the same for a server, a model in the worker and stored replies.
"""

from collections.abc import Callable, Generator, Mapping

from curator.stages.caption.caption_records import Annotation, Reply, Request, Task

Dialog = Generator[list[Request], list[Reply], Annotation]
Dialogs = Callable[[Task], Dialog]
"""Begins the dialog about a task."""


def replayed(dialog: Dialog, replies: Mapping[str, Reply]) -> Annotation | None:
    """Uses up a new dialog with stored replies by request key; returns None if one is missing."""
    try:
        asked = next(dialog)
        while all(request.key in replies for request in asked):
            asked = dialog.send([replies[request.key] for request in asked])
    except StopIteration as end:
        annotation: Annotation = end.value
        return annotation
    dialog.close()
    return None


def known_replies(dialog: Dialog, replies: Mapping[str, Reply]) -> dict[str, Reply]:
    """Returns the stored replies that a new dialog takes before its first unanswered request.

    These include replies to requests in the same group as that request. The dialog is used up.
    """
    known: dict[str, Reply] = {}
    try:
        asked = next(dialog)
        while True:
            known |= {one.key: replies[one.key] for one in asked if one.key in replies}
            if any(one.key not in known for one in asked):
                break
            asked = dialog.send([known[one.key] for one in asked])
    except StopIteration:
        pass
    dialog.close()
    return known
