# Written by `make times`: how long things take here, beside what an empty compiled module costs. CPU_S is processor time.
EMPTY_MODULE_CPU_S := 0.14
GCC_CPU_S := 46
GCC_IN_EMPTY_MODULES := 322
POLICY_CPU_S := 2.5
LINES_OF_C := 931433
MODULES := 44
BUILD_S := 31
DEMO_S := 17
REST_S := 23
DEV_S := 57
