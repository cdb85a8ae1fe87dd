# Written by `make times`: how long things take here, beside what an empty compiled module costs. CPU_S is processor time.
EMPTY_MODULE_CPU_S := 0.27
GCC_CPU_S := 60
GCC_IN_EMPTY_MODULES := 200
CYTHON_CPU_S := 20
POLICY_CPU_S := 4
LINES_OF_C := 400000
MODULES := 31
BUILD_S := 40
DEMO_S := 60
DEV_S := 60
