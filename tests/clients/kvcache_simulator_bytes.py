"""Run within an environment that has kvcache-simulator: its bytes of each of its models, as JSON lines.

Usage: python kvcache_simulator_bytes.py settings.json, a list of objects with the arguments of its calculator.
"""

import json
import sys

from kvcache_sim.calculator import calculate_cache_size, load_models_data


def main(path):
    with open(path) as file:
        settings = json.load(file)
    data = load_models_data()
    for model in data["models"]:
        sizes = []
        for setting in settings:
            try:
                found = calculate_cache_size(model, models_data=data, **setting)
            except ValueError as error:
                sizes.append(str(error))
            else:
                sizes.append([found.kv_bytes, found.indexer_bytes])
        print(json.dumps({"model": model["id"], "sizes": sizes}))


if __name__ == "__main__":
    main(sys.argv[1])
