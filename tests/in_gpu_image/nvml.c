// The part of libnvidia-ml.so.1 that vLLM asks before it has a device: ANTEFIX_PRETENDED_GPUS A100-SXM4-80GB with
// NVLink. NVML's own reference has the types: docs.nvidia.com/deploy/nvml-api
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long bytes;
typedef struct { bytes total, free, used; } memory;
typedef struct { unsigned version; bytes total, reserved, free, used; } memory_v2;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };
static const bytes TOTAL = 85899345920ULL, USED = 453771264ULL;

static unsigned gpus(void) {
    const char *said = getenv("ANTEFIX_PRETENDED_GPUS");
    return said ? (unsigned)atoi(said) : 0;
}

int nvmlInit_v2(void) { return gpus() ? SUCCESS : NOT_FOUND; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "pretended NVML"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.82.07"), SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = gpus(), SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= gpus()) return INVALID_ARGUMENT;
    return *handle = (void *)(size_t)(index + 1), SUCCESS;
}
int nvmlDeviceGetIndex(void *handle, unsigned *index) { return *index = (size_t)handle - 1, SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    return *major = 8, *minor = 0, SUCCESS;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    return snprintf(text, size, "NVIDIA A100-SXM4-80GB"), SUCCESS;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    return snprintf(text, size, "GPU-00000000-0000-0000-0000-%012zu", (size_t)handle), SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory *info) {
    return info->total = TOTAL, info->used = USED, info->free = TOTAL - USED, SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *info) {
    return info->total = TOTAL, info->reserved = 0, info->used = USED, info->free = TOTAL - USED, SUCCESS;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) { return *status = 0, SUCCESS; }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) { return *active = link < 12, SUCCESS; }
int nvmlDeviceGetNumaNodeId(void *handle, unsigned *node) { return *node = 0, SUCCESS; }
