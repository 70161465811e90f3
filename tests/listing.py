"""All objects of a kind at once, with the version to watch from."""

from collections.abc import Mapping

from mpsd.platform.kube import Kube, Listing, Resource


async def listing(
    kube: Kube, resource: Resource, namespace: str = "", query: Mapping[str, str] | None = None
) -> Listing:
    pages = [page async for page in kube.pages(resource, namespace, query)]
    return Listing([one for page in pages for one in page.items], pages[-1].version)
