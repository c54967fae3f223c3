// Stands in for the header of this name, which checks the host compiler for nvcc. There is no nvcc here.
#pragma once

#include "crt/host_defines.h"
