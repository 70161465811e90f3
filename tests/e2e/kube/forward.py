"""Carries TCP connections on: `forward.py ADDRESS PORT TO_ADDRESS TO_PORT`."""

import asyncio
import sys
from contextlib import suppress


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(65536):
            sink.write(piece)
            await sink.drain()
    with suppress(OSError):
        sink.close()


async def main(address: str, port: str, to_address: str, to_port: str) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(to_address, int(to_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    async with await asyncio.start_server(carry, address, int(port)) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
