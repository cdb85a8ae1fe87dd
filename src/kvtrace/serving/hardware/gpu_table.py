"""GPUs by name: peaks and memory of data sheets, shares of the peaks that public measurements reach, and prices.

Each figure's source is in docs/serving/serving-model.md. No figure was fitted to a recording of a served model.
"""

from __future__ import annotations

_H100 = {"flops": 989.4e12, "matmul_share": 0.803}  # SXM; the H200 computes at the same rate

# with sparsity BF16 is twice this: 1,978.9 TFLOP/s on the data sheets of the H100 and the H200, 624 on the A100's
GPU_FIGURES: dict[str, dict[str, float]] = {
    "h100": _H100 | {"bandwidth": 3.35e12, "memory": 80e9, "price_per_hour": 3.00},
    "h200": _H100 | {"bandwidth": 4.8e12, "memory": 141e9, "price_per_hour": 3.80},
    "a100": {
        "flops": 312e12, "bandwidth": 2.039e12, "memory": 80e9, "price_per_hour": 1.80, "matmul_share": 0.869,
    },
    "h100-pcie": {
        "flops": 756e12, "bandwidth": 2.0e12, "memory": 80e9, "price_per_hour": 2.30, "matmul_share": 0.656,
    },
    "a100-pcie": {
        "flops": 312e12, "bandwidth": 1.935e12, "memory": 80e9, "price_per_hour": 1.50, "matmul_share": 0.811,
        "bandwidth_share": 0.893,
    },
    "b200": {
        "flops": 2250e12, "bandwidth": 8.0e12, "memory": 180e9, "price_per_hour": 5.00, "matmul_share": 0.776,
    },
    "l40s": {
        "flops": 362e12, "bandwidth": 0.864e12, "memory": 48e9, "price_per_hour": 0.90, "matmul_share": 0.743,
    },
    "rtx-4090": {
        "flops": 165.2e12, "bandwidth": 1.008e12, "memory": 24e9, "price_per_hour": 0.45, "matmul_share": 0.998,
        "bandwidth_share": 0.915,
    },
    "rtx-pro-6000": {
        "flops": 503.8e12, "bandwidth": 1.792e12, "memory": 96e9, "price_per_hour": 1.60, "matmul_share": 0.780,
    },
    "rtx-pro-6000-server": {  # slower memory, and a lower clock: 188 SMs x 1,024 FLOP x 2.43 GHz
        "flops": 467.8e12, "bandwidth": 1.597e12, "memory": 96e9, "price_per_hour": 1.60, "matmul_share": 0.892,
    },
    "mi300x": {
        "flops": 1307.4e12, "bandwidth": 5.3e12, "memory": 192e9, "price_per_hour": 2.50, "matmul_share": 0.511,
    },
    "tpu-v5e": {
        "flops": 197e12, "bandwidth": 0.819e12, "memory": 16e9, "price_per_hour": 1.20, "matmul_share": 0.670,
    },
}  # fmt: skip
