"""What the simulated API server says no with.

One rule: code, reason and words are those of Kubernetes, since clients act by them.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiRefusal(Exception):
    """An answer other than 2xx."""

    def __init__(self, code: int, reason: str, message: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes

    def status(self) -> dict[str, Any]:
        """The object that says it."""
        causes = [{"reason": one.reason, "message": one.message, "field": one.field} for one in self.causes]
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
            **({"details": {"causes": causes}} if causes else {}),
        }


def not_found(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(404, "NotFound", f'{plural} "{name}" not found')


def no_such_path() -> ApiRefusal:
    return ApiRefusal(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, name: str) -> ApiRefusal:
    return ApiRefusal(409, "AlreadyExists", f'{plural} "{name}" already exists')


def conflict(plural: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')


def modified(plural: str, name: str) -> ApiRefusal:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, name, why)


def invalid(kind: str, name: str, causes: list[Cause]) -> ApiRefusal:
    words = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    return ApiRefusal(422, "Invalid", f'{kind} "{name}" is invalid: {words}', tuple(causes))


def bad_request(message: str) -> ApiRefusal:
    return ApiRefusal(400, "BadRequest", message)


def forbidden(message: str) -> ApiRefusal:
    return ApiRefusal(403, "Forbidden", message)


def expired(version: str) -> ApiRefusal:
    return ApiRefusal(410, "Expired", f"too old resource version: {version}")


def too_new(version: str) -> ApiRefusal:
    cause = Cause("", "Too large resource version", "ResourceVersionTooLarge")
    return ApiRefusal(504, "Timeout", f"Timeout: Too large resource version: {version}", (cause,))


def too_many_requests(message: str) -> ApiRefusal:
    return ApiRefusal(429, "TooManyRequests", message)
