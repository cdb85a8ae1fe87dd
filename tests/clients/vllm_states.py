"""Run within an environment that has vLLM: the shapes of its states for the arguments of a JSON file, as JSON lines."""

import json
import sys

from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator


def main(path):
    with open(path) as file:
        cases = json.load(file)
    for function, arguments in cases:
        print("SHAPE", json.dumps(getattr(MambaStateShapeCalculator, function)(**arguments)))


if __name__ == "__main__":
    main(sys.argv[1])
