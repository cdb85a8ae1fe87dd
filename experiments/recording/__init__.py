"""A recording of a real model: vLLM's scheduler plans each step, a transformer executes it, its time is measured.

sizes, prompts, cutting      the model, its tokens, the part of a trace that fits
batch, attention, executor   a step as arrays; attention over pages; the step executed and timed
triton_decode                a kernel for decoding requests on a GPU
recorder, machine, folder    the run; the peaks of the device; files in the form of vLLM's request metrics
fit                          calibration and validation on such a folder
"""
