"""ResNet-50 under PyTorch, trained and asked, at the pace of whoever started it: a program of its own.

    resnet.py SECONDS KIND=BATCH...

    KIND       train: a step of SGD with autocast to bfloat16; infer: a forward pass in float16; train-graph and
               infer-graph: the same, captured once as a CUDA graph and launched as a whole
    first      the model is made and run until it is warm     {"ready": pid, "work": KIND, "batch": BATCH, "sms": of the
                                                               GPU, as it sees them}
    then       it waits for a line on standard input, and ends with exit code 0 where that ends
    then       it runs for SECONDS and a little longer        {"work", "batch", "images", "seconds", "per_s": images}

for each KIND=BATCH. Images are made up once and lie on the GPU, channels last, so that no disk is measured. PyTorch
launches a pass kernel by kernel: with a small batch the processor is the limit and not the SMs, but with a graph.
NVIDIA's published figures of inference are TensorRT's, and these are PyTorch's: compare ratios, not images.

Nothing of mpsd is needed, nothing is set on the card, and what is timed are whole passes, until the GPU is
done with the last.
"""

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torchvision.models import resnet50

PIXELS, CLASSES = 224, 1000
WARM_UP = 12  # passes; in the first one cuDNN looks for its fastest kernels
IN_FLIGHT = 3  # passes that are launched before the GPU is done with the oldest: it is never idle, and never far behind
LONGER = 1.25  # it goes on for this much of the time, so that whoever is measured beside it is not alone at the end
MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
DEVICE = torch.device("cuda")

Pass = Callable[[], None]


def main(words: list[str]) -> int:
    seconds, asked = float(words[0]), [word.partition("=") for word in words[1:]]
    torch.backends.cudnn.benchmark = True
    for kind, _equals, batch in asked:
        run = KINDS[kind](int(batch))
        for _number in range(WARM_UP):
            run()
        torch.cuda.synchronize()
        say(ready=os.getpid(), work=kind, batch=int(batch), sms=sms())
        if not sys.stdin.readline():
            return 0
        passes, took_s = measure(run, seconds)
        images = passes * int(batch)
        say(work=kind, batch=int(batch), images=images, seconds=round(took_s, 4), per_s=round(images / took_s, 1))
        del run
        gc.collect()
        torch.cuda.empty_cache()
    return 0


def sms() -> int:
    """Of the first GPU, as the driver says once there is a context; PyTorch may have asked before."""
    library, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    for result in (
        library.cuDeviceGet(ctypes.byref(device), 0),
        library.cuDeviceGetAttribute(ctypes.byref(found), MULTIPROCESSOR_COUNT, device),
    ):
        if result:
            raise RuntimeError(f"the driver does not say how many SMs there are: CUDA error {result}")
    return found.value


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def measure(run: Pass, seconds: float) -> tuple[int, float]:
    """Passes, and the seconds that they took."""
    began = time.monotonic()
    passes = run_until(run, began + seconds)
    took_s = time.monotonic() - began
    run_until(run, began + seconds * LONGER)
    return passes, took_s


def run_until(run: Pass, ends: float) -> int:
    """How many passes were begun before then; returns when the GPU has done them."""
    in_flight: list[torch.cuda.Event] = []
    passes = 0
    while time.monotonic() < ends:
        run()
        passes += 1
        in_flight.append(torch.cuda.Event())
        in_flight[-1].record()
        if len(in_flight) == IN_FLIGHT:
            in_flight.pop(0).synchronize()
    torch.cuda.synchronize()
    return passes


def made_up(batch: int, kind: torch.dtype) -> torch.Tensor:
    images = torch.randn(batch, 3, PIXELS, PIXELS, device=DEVICE, dtype=kind)
    return images.to(memory_format=torch.channels_last)


def training(batch: int) -> Pass:
    model = resnet50(weights=None).to(DEVICE, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    images, labels = made_up(batch, torch.float32), torch.randint(CLASSES, (batch,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def inference(batch: int) -> Pass:
    model = resnet50(weights=None).to(DEVICE, torch.float16, memory_format=torch.channels_last).eval()
    images = made_up(batch, torch.float16)

    def forward() -> None:
        with torch.inference_mode():
            model(images)

    return forward


def captured(run: Pass) -> Pass:
    """The same as one launch. It is warmed up first, on a stream of its own, as PyTorch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _number in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_held: Pass = run) -> None:
        """_held: the graph reads and writes what it has, such as the model."""
        graph.replay()

    return replay


KINDS: dict[str, Callable[[int], Pass]] = {
    "train": training,
    "infer": inference,
    "train-graph": lambda batch: captured(training(batch)),
    "infer-graph": lambda batch: captured(inference(batch)),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
