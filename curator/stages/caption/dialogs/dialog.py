"""Dialogs about windows, apart from the captioner that answers them.

A dialog is a generator: it yields requests that may be answered at the same time, takes their
replies in the same order, and returns the window's annotation. So questions, checks, repairs and
judgement are the same for a server, a model in the worker and stored replies.
"""

from collections.abc import Callable, Generator, Mapping

from curator.stages.caption.caption_records import Annotation, Reply, Request, Task

Dialog = Generator[list[Request], list[Reply], Annotation]
Dialogs = Callable[[Task], Dialog]
"""Begins the dialog about a task."""


def replayed(dialog: Dialog, replies: Mapping[str, Reply]) -> Annotation | None:
    """Runs a dialog with stored replies.

    Args:
        dialog: At its start; it is used up.
        replies: By the key of their request.

    Returns:
        The annotation, or None if a reply is missing.
    """
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
    """The stored replies that a dialog takes before the first request without one.

    Args:
        dialog: At its start; it is used up.
        replies: By the key of their request.

    Returns:
        By key; with those to requests that are made together with the first one without.
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
