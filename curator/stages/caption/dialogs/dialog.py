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


def replayed(
    dialog: Dialog, replies: Mapping[str, Reply]
) -> tuple[Annotation | None, dict[str, Reply]]:
    """Uses up a new dialog with stored replies by request key.

    Returns:
        The annotation, or None if a reply is missing; and the replies that the dialog takes before
        its first unanswered request, with those to requests in the same group.
    """
    known: dict[str, Reply] = {}
    try:
        asked = next(dialog)
        while True:
            known |= {one.key: replies[one.key] for one in asked if one.key in replies}
            if any(one.key not in known for one in asked):
                break
            asked = dialog.send([known[one.key] for one in asked])
    except StopIteration as end:
        return end.value, known
    dialog.close()
    return None, known
