"""The course of asking about a window, without anybody who answers.

A dialog is a generator: it yields requests that may be answered at the same time, and takes their
replies in the same order; what it returns is the window's annotation. So one course of questions,
checks, repairs and judgement serves a server, a model in the worker, and replies that are stored:
a dialog that is told stored replies to its end asks nobody anything.
"""

from collections.abc import Callable, Generator, Mapping

from curator.stages.caption.caption_records import Annotation, Reply, Request, Task

Dialog = Generator[list[Request], list[Reply], Annotation]
Dialogs = Callable[[Task], Dialog]
"""Begins the dialog about a task."""


def replayed(dialog: Dialog, replies: Mapping[str, Reply]) -> Annotation | None:
    """Tells a dialog the replies that there are.

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
    """Replies that a dialog is told before it waits for one that is missing.

    Args:
        dialog: At its start; it is used up.
        replies: By the key of their request.

    Returns:
        Those that are there, by key, the missing one's neighbours among them.
    """
    told: dict[str, Reply] = {}
    try:
        asked = next(dialog)
        while True:
            told |= {one.key: replies[one.key] for one in asked if one.key in replies}
            if any(one.key not in told for one in asked):
                break
            asked = dialog.send([told[one.key] for one in asked])
    except StopIteration:
        pass
    dialog.close()
    return told
