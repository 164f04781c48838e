# The OpenMP runtime is not instrumented, so it stays out.
set(CMAKE_C_COMPILER clang CACHE STRING "")
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(NIGHTSHIFT_WERROR ON CACHE BOOL "")
set(NIGHTSHIFT_OPENMP OFF CACHE BOOL "")
set(NIGHTSHIFT_SANITIZE "thread" CACHE STRING "")
