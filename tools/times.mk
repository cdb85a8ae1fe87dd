# Written by `make times`: how long things take here, beside what an empty compiled module costs. CPU_S is processor time.
EMPTY_MODULE_CPU_S := 0.35
GCC_CPU_S := 116.6
GCC_IN_EMPTY_MODULES := 330
CYTHON_CPU_S := 13
POLICY_CPU_S := 6.5
LINES_OF_C := 678285
MODULES := 31
BUILD_S := 70
DEMO_S := 85
REST_S := 40
DEV_S := 90
