# Written by `make times`: how long things take here, beside what an empty compiled module costs. CPU_S is processor time.
EMPTY_MODULE_CPU_S := 0.3
GCC_CPU_S := 74
GCC_IN_EMPTY_MODULES := 249
POLICY_CPU_S := 5.5
LINES_OF_C := 678516
MODULES := 31
BUILD_S := 58
DEMO_S := 39
REST_S := 31
DEV_S := 108
