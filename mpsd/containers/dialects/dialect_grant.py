"""From what a container asks in a dialect to what the books are to hold for it, and what its user is told.

One rule: the books hold of every card what was asked of that card, whatever MPS is told for all of them together.
"""

from mpsd.containers.dialects.dialect_request import CardRequest, DialectRequest
from mpsd.model.grants import CardsRequest, Part


def cards_request(request: DialectRequest) -> CardsRequest:
    """What the books are asked for. MPS has one thread percentage for all cards of a program: the smallest."""
    return CardsRequest(
        parts=tuple(
            Part(card.gpu.uuid, card.memory_mib, card.reserved_percent, _weight(card)) for card in request.cards
        ),
        thread_percent=min(card.thread_percent for card in request.cards),
    )


def _weight(card: CardRequest) -> int | None:
    """cGPU's, which is 1 where none is written; None in the other dialects."""
    return None if card.policy is None else card.weight or 1


def messages(request: DialectRequest) -> tuple[str, ...]:
    """Where MPS does something else than the dialect says: each sentence once, after the cards that it is about where
    it is not about all of them.
    """
    about: dict[str, list[str]] = {}
    for card in request.cards:
        for sentence in card.differs:
            about.setdefault(sentence, []).append(card.gpu.label)
    return tuple(
        sentence if len(labels) == len(request.cards) else f"{', '.join(labels)}: {sentence}"
        for sentence, labels in about.items()
    )
