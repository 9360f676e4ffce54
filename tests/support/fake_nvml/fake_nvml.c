/* A stand-in for libnvidia-ml.so.1, so that the real bindings run on hosts without a GPU.
 *
 * What it says is in the file `state` beside the library, read again whenever it changes. The file
 * is written by the Python driver (__init__.py), one statement a line, words separated by blanks:
 *
 *   driver VERSION | library VERSION | cuda NUMBER | init CODE | log
 *   gpu INDEX total reserved used capability_major capability_minor power power_limit temperature
 *       utilization generation width generation_max width_max minor persistence mig(-1,0,1)
 *       instances recovery
 *   name|uuid|bus INDEX TEXT
 *   row INDEX KINDS PID START MEMORY SHOWN GI CI LINGER_MS GHOST
 *   detail INDEX bar1 replays power_limit power_default ecc ecc_pending uncorrected rows_pending
 *       rows_failed compute_mode clock_reasons
 *   pair FIRST SECOND read write atomics ancestor      (FIRST < SECOND)
 *   back FIRST SECOND read                             (the way from SECOND to FIRST)
 *   cc ON
 *   error INDEX FUNCTION CODE | block INDEX FUNCTION HARD | slow INDEX FUNCTION MILLISECONDS
 *
 * KINDS: 1 compute, 2 graphics, 4 mps. START: 0 for a row that is just there, else the start time
 * of the process: the row is listed while that process lives; afterwards only if GHOST, and its
 * memory is in use for LINGER_MS more (-1: for ever). SHOWN 0: memory not available. INDEX -1 in
 * error, block and slow: any GPU and none. FUNCTION without its _vN fits every version. What has
 * no detail, pair or cc line is not supported.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef FAKE_NVML_HEADER /* compiled against NVIDIA's own header, to see that both agree */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#else
typedef void *nvmlDevice_t;
typedef int nvmlReturn_t;
typedef int nvmlEnableState_t;
typedef int nvmlTemperatureSensors_t;
typedef int nvmlMemoryErrorType_t;
typedef int nvmlEccCounterType_t;
typedef int nvmlComputeMode_t;
typedef int nvmlGpuP2PCapsIndex_t;
typedef int nvmlGpuP2PStatus_t;
typedef int nvmlGpuTopologyLevel_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef nvmlProcessInfo_t nvmlProcessInfo_v2_t;
typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;
typedef struct {
    unsigned int version;
    nvmlTemperatureSensors_t sensorType;
    int temperature;
} nvmlTemperature_t;
typedef union {
    double dVal;
    unsigned int uiVal;
    unsigned long long ullVal;
} nvmlValue_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;
typedef struct {
    unsigned int environment, ccFeature, devToolsMode;
} nvmlConfComputeSystemState_t;
#define NVML_FI_DEV_GET_GPU_RECOVERY_ACTION 230
#define NVML_MEMORY_ERROR_TYPE_UNCORRECTED 1
#define NVML_VOLATILE_ECC 0
#define NVML_P2P_CAPS_INDEX_READ 0
#define NVML_P2P_CAPS_INDEX_WRITE 1
#define NVML_P2P_CAPS_INDEX_ATOMICS 3
#endif

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(nvmlUtilization_t) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(nvmlTemperature_t) == 12, "nvmlTemperature_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlBAR1Memory_t) == 24, "nvmlBAR1Memory_t");
_Static_assert(sizeof(nvmlConfComputeSystemState_t) == 12, "nvmlConfComputeSystemState_t");
_Static_assert(NVML_MEMORY_ERROR_TYPE_UNCORRECTED == 1, "kind of an ECC error");
_Static_assert(NVML_VOLATILE_ECC == 0, "since when ECC errors count");
_Static_assert(NVML_P2P_CAPS_INDEX_READ == 0 && NVML_P2P_CAPS_INDEX_WRITE == 1 &&
               NVML_P2P_CAPS_INDEX_ATOMICS == 3, "what two GPUs can do");
_Static_assert(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230, "field of the recovery action");

#define OK ((nvmlReturn_t)0)
#define UNINITIALIZED ((nvmlReturn_t)1)
#define INVALID ((nvmlReturn_t)2)
#define NOT_SUPPORTED ((nvmlReturn_t)3)
#define NOT_FOUND ((nvmlReturn_t)6)
#define TOO_SMALL ((nvmlReturn_t)7)
#define WRONG_VERSION ((nvmlReturn_t)25)
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };
#define MAX_GPUS 64
#define MAX_ROWS 4096
#define MAX_RULES 256
#define MAX_PAIRS 2048

struct detail {
    int there;
    unsigned long long bar1, uncorrected, reasons;
    unsigned int replays, limit, usual, ecc, ecc_pending, pending, failed, mode;
};
struct gpu {
    int there, major, minor_capability, temperature, persistence, mig;
    unsigned long long total, reserved, used;
    unsigned int power, power_limit, utilization, generation, width, generation_max, width_max;
    unsigned int minor, instances, recovery;
    struct detail detail;
    char name[96], uuid[96], bus[32];
};
struct row {
    int gpu, kinds, shown, ghost, linger;
    unsigned int pid, gi, ci;
    unsigned long long start, memory;
};
struct pair {
    int first, second, back, read, write, atomics, ancestor;
};
struct rule {
    char what;
    int gpu, value;
    char function[96];
};

static struct {
    char driver[81], library[81];
    int cuda, init, log, gpus, rows, rules, pairs, has_confidential;
    unsigned int confidential;
    struct gpu gpu[MAX_GPUS];
    struct row row[MAX_ROWS];
    struct rule rule[MAX_RULES];
    struct pair pair[MAX_PAIRS];
} state;
static char folder[3072];
static struct timespec changed;
static ino_t inode;
static int initialized;

static void find_folder(void) {
    Dl_info where;
    if (folder[0] == 0 && dladdr((void *)&folder, &where) != 0) {
        snprintf(folder, sizeof folder, "%s", where.dli_fname);
        char *end = strrchr(folder, '/');
        if (end != NULL) *end = 0;
    }
}

static int take_detail(const char *line) {
    struct detail d = {0};
    int index;
    if (sscanf(line, "detail %d %llu %u %u %u %u %u %llu %u %u %u %llu", &index, &d.bar1,
               &d.replays, &d.limit, &d.usual, &d.ecc, &d.ecc_pending, &d.uncorrected, &d.pending,
               &d.failed, &d.mode, &d.reasons) != 12 || index < 0 || index >= MAX_GPUS)
        return 0;
    d.there = 1;
    state.gpu[index].detail = d;
    return 1;
}

static int take_pair(const char *line) {
    struct pair p = {0};
    if (state.pairs >= MAX_PAIRS) return 0;
    p.back = sscanf(line, "back %d %d %d", &p.first, &p.second, &p.read) == 3;
    if (!p.back && sscanf(line, "pair %d %d %d %d %d %d", &p.first, &p.second, &p.read, &p.write,
                          &p.atomics, &p.ancestor) != 6)
        return 0;
    state.pair[state.pairs++] = p;
    return 1;
}

static void take(char *line) {
    struct gpu g = {0};
    struct row r;
    struct rule rule;
    int index, number, used = 0;
    line[strcspn(line, "\n")] = 0;
    if (strcmp(line, "log") == 0) state.log = 1;
    if (sscanf(line, "driver %80s", state.driver) == 1) return;
    if (sscanf(line, "library %80s", state.library) == 1) return;
    if (sscanf(line, "cuda %d", &state.cuda) == 1) return;
    if (sscanf(line, "init %d", &state.init) == 1) return;
    if (sscanf(line, "cc %u", &state.confidential) == 1) state.has_confidential = 1;
    if (take_detail(line) || take_pair(line)) return;
    if (sscanf(line, "gpu %d %llu %llu %llu %d %d %u %u %d %u %u %u %u %u %u %d %d %u %u", &index,
               &g.total, &g.reserved, &g.used, &g.major, &g.minor_capability, &g.power,
               &g.power_limit, &g.temperature, &g.utilization, &g.generation, &g.width,
               &g.generation_max, &g.width_max, &g.minor, &g.persistence, &g.mig, &g.instances,
               &g.recovery) == 19 && index >= 0 && index < MAX_GPUS) {
        g.there = 1;
        state.gpu[index] = g;
        if (index >= state.gpus) state.gpus = index + 1;
    } else if (sscanf(line, "name %d %n", &index, &used) == 1 && used > 0) {
        snprintf(state.gpu[index].name, 96, "%s", line + used);
    } else if (sscanf(line, "uuid %d %n", &index, &used) == 1 && used > 0) {
        snprintf(state.gpu[index].uuid, 96, "%s", line + used);
    } else if (sscanf(line, "bus %d %n", &index, &used) == 1 && used > 0) {
        snprintf(state.gpu[index].bus, 32, "%s", line + used);
    } else if (sscanf(line, "row %d %d %u %llu %llu %d %u %u %d %d", &r.gpu, &r.kinds, &r.pid,
                      &r.start, &r.memory, &r.shown, &r.gi, &r.ci, &r.linger, &r.ghost) == 10) {
        if (state.rows < MAX_ROWS) state.row[state.rows++] = r;
    } else if (sscanf(line, "%*s %d %95s %d", &index, rule.function, &number) == 3) {
        rule.what = line[0];
        rule.gpu = index;
        rule.value = number;
        if (state.rules < MAX_RULES) state.rule[state.rules++] = rule;
    }
}

static void refresh(void) {
    char path[4096], line[512];
    struct stat now;
    find_folder();
    snprintf(path, sizeof path, "%s/state", folder);
    if (stat(path, &now) != 0) abort();
    if (now.st_ino == inode && memcmp(&now.st_mtim, &changed, sizeof changed) == 0) return;
    FILE *file = fopen(path, "r");
    if (file == NULL) abort();
    memset(&state, 0, sizeof state);
    while (fgets(line, sizeof line, file) != NULL) take(line);
    fclose(file);
    inode = now.st_ino;
    changed = now.st_mtim;
}

static void note(const char *function, int gpu) {
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s/calls", folder);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    int size = snprintf(line, sizeof line, "%d %d %s\n", (int)getpid(), gpu, function);
    if (file < 0 || write(file, line, size) != size) abort();
    close(file);
}

static int fits(const char *wanted, const char *function) {
    size_t size = strlen(wanted);
    return strncmp(wanted, function, size) == 0 &&
           (function[size] == 0 || strncmp(function + size, "_v", 2) == 0);
}

/* What happens to every call first; `gpu` is -1 for calls that are about none. */
static nvmlReturn_t meet(const char *function, int gpu) {
    nvmlReturn_t answer = OK;
    refresh();
    if (state.log) note(function, gpu);
    for (int i = 0; i < state.rules; i++) {
        struct rule rule = state.rule[i];
        if ((rule.gpu != gpu && rule.gpu != -1) || !fits(rule.function, function)) continue;
        if (rule.what == 's') {
            struct timespec nap = {rule.value / 1000, rule.value % 1000 * 1000000L};
            nanosleep(&nap, NULL);
        } else if (rule.what == 'b') {
            sigset_t all;
            sigfillset(&all);
            if (rule.value) sigprocmask(SIG_BLOCK, &all, NULL);
            for (;;) pause();
        } else if (rule.what == 'c') {
            abort();
        } else {
            answer = (nvmlReturn_t)rule.value;
        }
    }
    if (!initialized && strncmp(function, "nvmlInit", 8) != 0) return UNINITIALIZED;
    return answer;
}

/* Handles: GPU number + 1, and above it the number + 1 of a MIG instance. */
static int gpu_of(nvmlDevice_t handle) { return (int)((size_t)handle & 0xff) - 1; }
static int instance_of(nvmlDevice_t handle) { return (int)((size_t)handle >> 8) - 1; }

#define MEET(handle)                                                                     \
    int index = gpu_of(handle);                                                          \
    nvmlReturn_t met = meet(__func__, instance_of(handle) >= 0 ? index + 1000 : index);  \
    if (met != OK) return met;                                                           \
    if (index < 0 || index >= state.gpus || !state.gpu[index].there) return INVALID;     \
    const struct gpu *gpu = &state.gpu[index];                                           \
    (void)gpu

/* The functions that only read one number of a GPU, and those of its details. */
#define GETTER(function, type, value)                      \
    nvmlReturn_t function(nvmlDevice_t device, type *to) { \
        MEET(device);                                      \
        *to = (type)(value);                               \
        return OK;                                         \
    }
#define DETAIL(handle)                                     \
    MEET(handle);                                          \
    const struct detail *detail = &gpu->detail;            \
    if (!detail->there) return NOT_SUPPORTED
#define DETAIL_GETTER(function, type, value)               \
    nvmlReturn_t function(nvmlDevice_t device, type *to) { \
        DETAIL(device);                                    \
        *to = (type)(value);                               \
        return OK;                                         \
    }

static int alive(const struct row *row) {
    char path[64], text[1024];
    unsigned long long start = 0;
    char letter = 'X';
    snprintf(path, sizeof path, "/proc/%u/stat", row->pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *rest = strrchr(text, ')');
    if (rest == NULL ||
        sscanf(rest + 2, "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                         "%*d %llu", &letter, &start) != 2)
        return 0;
    return start == row->start && letter != 'Z' && letter != 'X';
}

/* Milliseconds since the process of a row was first seen dead; remembered in a file. */
static long long dead_for(const struct row *row) {
    char path[4096];
    struct stat seen;
    struct timespec now;
    snprintf(path, sizeof path, "%s/dead.%u.%llu", folder, row->pid, row->start);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file >= 0) close(file);
    if (stat(path, &seen) != 0) abort();
    clock_gettime(CLOCK_REALTIME, &now);
    return (now.tv_sec - seen.st_mtim.tv_sec) * 1000LL +
           (now.tv_nsec - seen.st_mtim.tv_nsec) / 1000000;
}

static int listed(const struct row *row) { return row->start == 0 || row->ghost || alive(row); }

static int counted(const struct row *row) {
    if (row->start == 0 || alive(row)) return 1;
    return row->linger < 0 || dead_for(row) < row->linger;
}

static unsigned long long in_use(int index) {
    unsigned long long sum = state.gpu[index].used;
    for (int i = 0; i < state.rows; i++)
        if (state.row[i].gpu == index && counted(&state.row[i])) sum += state.row[i].memory;
    return sum;
}

static nvmlReturn_t table(nvmlDevice_t handle, int index, int kind, unsigned int *count,
                          nvmlProcessInfo_t *rows) {
    unsigned int found = 0;
    int instance = instance_of(handle);
    for (int i = 0; i < state.rows; i++) {
        const struct row *row = &state.row[i];
        if (row->gpu != index || !(row->kinds & kind) || !listed(row)) continue;
        if (instance >= 0 && row->gi != (unsigned int)instance + 1) continue;
        if (rows != NULL && found < *count) {
            rows[found].pid = row->pid;
            rows[found].usedGpuMemory = row->shown ? row->memory : ~0ULL;
            rows[found].gpuInstanceId = row->gi;
            rows[found].computeInstanceId = row->ci;
        }
        found++;
    }
    int fitted = found <= *count;
    *count = found;
    return fitted ? OK : TOO_SMALL;
}

static nvmlReturn_t text(char *to, unsigned int length, const char *from) {
    if (strlen(from) >= length) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t met = meet(__func__, -1);
    if (met != OK) return met;
    initialized = state.init == 0;
    return (nvmlReturn_t)state.init;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) {
    initialized = 0;
    return OK;
}
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == OK ? "Success" : "an error of the fake library";
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned int length) {
    refresh(); /* answers without nvmlInit, as the real one does */
    return text(to, length, state.library);
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned int length) {
    nvmlReturn_t met = meet(__func__, -1);
    return met != OK ? met : text(to, length, state.driver);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = state.cuda;
    return meet(__func__, -1);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    nvmlReturn_t met = meet(__func__, -1);
    *count = state.gpus;
    return met;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int number, nvmlDevice_t *handle) {
    *handle = (nvmlDevice_t)(size_t)(number + 1);
    MEET(*handle);
    return OK;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *to, unsigned int length) {
    MEET(device);
    return text(to, length, gpu->name);
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *to, unsigned int length) {
    MEET(device);
    return text(to, length, gpu->uuid);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    MEET(device);
    memset(pci, 0, sizeof *pci);
    memcpy(pci->busId, gpu->bus, sizeof pci->busId);
    return OK;
}
GETTER(nvmlDeviceGetMinorNumber, unsigned int, gpu->minor)
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    MEET(device);
    *major = gpu->major;
    *minor = gpu->minor_capability;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    MEET(device);
    memory->total = gpu->total;
    memory->used = in_use(index) + gpu->reserved;
    memory->free = gpu->total - memory->used;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    MEET(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return WRONG_VERSION;
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = in_use(index);
    memory->free = gpu->total - gpu->reserved - memory->used;
    return OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *rows) {
    MEET(device);
    return table(device, index, COMPUTE, count, rows);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *rows) {
    MEET(device);
    return table(device, index, COMPUTE, count, (nvmlProcessInfo_t *)rows);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *rows) {
    MEET(device);
    return table(device, index, GRAPHICS, count, rows);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *rows) {
    MEET(device);
    return table(device, index, MPS, count, rows);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending) {
    MEET(device);
    if (gpu->mig < 0) return NOT_SUPPORTED;
    *now = *pending = gpu->mig;
    return OK;
}
GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, 7)
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int number,
                                                 nvmlDevice_t *part) {
    MEET(device);
    if (number >= gpu->instances) return NOT_FOUND;
    *part = (nvmlDevice_t)((size_t)device | (size_t)(number + 1) << 8);
    return OK;
}
GETTER(nvmlDeviceGetPowerUsage, unsigned int, gpu->power)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, gpu->power_limit)
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    MEET(device);
    if (temperature->version != (sizeof *temperature | 1u << 24)) return WRONG_VERSION;
    temperature->temperature = gpu->temperature;
    return OK;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    MEET(device);
    utilization->gpu = gpu->utilization;
    utilization->memory = 0;
    return OK;
}
GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, gpu->persistence)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, gpu->generation)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, gpu->width)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, gpu->generation_max)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, gpu->width_max)
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    MEET(device);
    for (int i = 0; i < count; i++) {
        if (values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
            values[i].nvmlReturn = OK;
            values[i].value.uiVal = gpu->recovery;
        } else {
            values[i].nvmlReturn = NOT_SUPPORTED;
        }
    }
    return OK;
}

DETAIL_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, detail->replays)
DETAIL_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, detail->limit)
DETAIL_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, detail->usual)
DETAIL_GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, detail->mode)
DETAIL_GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, detail->reasons)
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    DETAIL(device);
    *memory = (nvmlBAR1Memory_t){detail->bar1, detail->bar1, 0};
    return OK;
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now,
                                  nvmlEnableState_t *later) {
    DETAIL(device);
    *now = (nvmlEnableState_t)detail->ecc;
    *later = (nvmlEnableState_t)detail->ecc_pending;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t since, unsigned long long *count) {
    DETAIL(device);
    if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED || since != NVML_VOLATILE_ECC) return INVALID;
    *count = detail->uncorrected;
    return OK;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                       unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failed) {
    DETAIL(device);
    *corrected = *uncorrected = 0;
    *pending = detail->pending;
    *failed = detail->failed;
    return OK;
}
nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *system) {
    nvmlReturn_t met = meet(__func__, -1);
    if (met != OK) return met;
    *system = (nvmlConfComputeSystemState_t){0, state.confidential, 0};
    return state.has_confidential ? OK : NOT_SUPPORTED;
}

static const struct pair *pair_of(int one, int other, int back) {
    int first = one < other ? one : other, second = one < other ? other : one;
    for (int i = 0; i < state.pairs; i++) {
        const struct pair *pair = &state.pair[i];
        if (pair->back == back && pair->first == first && pair->second == second) return pair;
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other,
                                    nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status) {
    MEET(one);
    int second = gpu_of(other);
    const struct pair *pair = pair_of(index, second, 0);
    const struct pair *back = index > second ? pair_of(index, second, 1) : NULL;
    if (what == NVML_P2P_CAPS_INDEX_READ && back != NULL) pair = back;
    if (pair == NULL) return NOT_SUPPORTED;
    if (what == NVML_P2P_CAPS_INDEX_READ) *status = (nvmlGpuP2PStatus_t)pair->read;
    else if (what == NVML_P2P_CAPS_INDEX_WRITE) *status = (nvmlGpuP2PStatus_t)pair->write;
    else if (what == NVML_P2P_CAPS_INDEX_ATOMICS) *status = (nvmlGpuP2PStatus_t)pair->atomics;
    else return INVALID;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level) {
    MEET(one);
    const struct pair *pair = pair_of(index, gpu_of(other), 0);
    if (pair == NULL) return NOT_SUPPORTED;
    *level = (nvmlGpuTopologyLevel_t)pair->ancestor;
    return OK;
}
