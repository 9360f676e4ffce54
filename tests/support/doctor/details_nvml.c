/* The fake libnvidia-ml.so.1 with what only the doctor asks for.
 *
 * Its answers are in the file `details` beside the library, read at every call:
 *
 *   detail INDEX bar1 replays power_limit power_default ecc ecc_pending uncorrected rows_pending
 *       rows_failed compute_mode clock_reasons
 *   pair FIRST SECOND read write atomics ancestor      (FIRST < SECOND)
 *   back FIRST SECOND read                             (the way from SECOND to FIRST)
 *   cc ON
 *
 * Errors, blocks and delays of the fake it is built upon work here, too.
 */
#include "fake_nvml.c"

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;
typedef struct {
    unsigned int environment, ccFeature, devToolsMode;
} nvmlConfComputeSystemState_t;

struct detail {
    unsigned long long bar1, uncorrected, reasons;
    unsigned int replays, limit, usual, ecc, ecc_pending, pending, failed, mode;
};

static int each(int (*take)(const char *, const void *, void *), const void *key, void *answer) {
    char path[4096], line[512];
    int found = 0;
    snprintf(path, sizeof path, "%s/details", folder);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) found = take(line, key, answer);
    fclose(file);
    return found;
}

static int take_detail(const char *line, const void *key, void *answer) {
    struct detail *d = answer;
    int index;
    return sscanf(line, "detail %d %llu %u %u %u %u %u %llu %u %u %u %llu", &index, &d->bar1,
                  &d->replays, &d->limit, &d->usual, &d->ecc, &d->ecc_pending, &d->uncorrected,
                  &d->pending, &d->failed, &d->mode, &d->reasons) == 12 &&
           index == *(const int *)key;
}

static int take_pair(const char *line, const void *key, void *answer) {
    const int *wanted = key;
    int *values = answer, first, second;
    return sscanf(line, "pair %d %d %d %d %d %d", &first, &second, &values[0], &values[1],
                  &values[2], &values[3]) == 6 && first == wanted[0] && second == wanted[1];
}

static int take_back(const char *line, const void *key, void *answer) {
    const int *wanted = key;
    int *values = answer, first, second;
    return sscanf(line, "back %d %d %d", &first, &second, &values[0]) == 3 &&
           first == wanted[0] && second == wanted[1];
}

static int take_confidential(const char *line, const void *key, void *answer) {
    (void)key;
    return sscanf(line, "cc %u", (unsigned int *)answer) == 1;
}

#define DETAIL(handle)                                                \
    MEET(handle);                                                     \
    struct detail d = {0};                                            \
    if (!each(take_detail, &index, &d)) return NOT_SUPPORTED

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    DETAIL(device);
    *memory = (nvmlBAR1Memory_t){d.bar1, d.bar1, 0};
    return OK;
}
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count) {
    DETAIL(device);
    *count = d.replays;
    return OK;
}
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    DETAIL(device);
    *milliwatts = d.limit;
    return OK;
}
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit) {
    DETAIL(device);
    *limit = d.usual;
    return OK;
}
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *now, unsigned int *later) {
    DETAIL(device);
    *now = d.ecc;
    *later = d.ecc_pending;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
                                         unsigned long long *count) {
    DETAIL(device);
    if (type != 1 || counter != 0) return INVALID; /* uncorrected, volatile */
    *count = d.uncorrected;
    return OK;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                       unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failed) {
    DETAIL(device);
    *corrected = *uncorrected = 0;
    *pending = d.pending;
    *failed = d.failed;
    return OK;
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
    DETAIL(device);
    *mode = d.mode;
    return OK;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons) {
    DETAIL(device);
    *reasons = d.reasons;
    return OK;
}
nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *system) {
    nvmlReturn_t met = meet(__func__, -1);
    if (met != OK) return met;
    *system = (nvmlConfComputeSystemState_t){0};
    return each(take_confidential, NULL, &system->ccFeature) ? OK : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, int capability,
                                    int *status) {
    MEET(one);
    int way[2] = {gpu_of(one), gpu_of(other)}, forth = way[0] < way[1], values[4];
    int pair[2] = {forth ? way[0] : way[1], forth ? way[1] : way[0]};
    if (capability == 2 || capability > 3) return INVALID;
    if (!forth && capability == 0 && each(take_back, pair, status)) return OK;
    if (!each(take_pair, pair, values)) return NOT_SUPPORTED;
    *status = values[capability == 3 ? 2 : capability];
    return OK;
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 int *level) {
    MEET(one);
    int pair[2] = {gpu_of(one), gpu_of(other)}, values[4];
    if (!each(take_pair, pair, values)) return NOT_SUPPORTED;
    *level = values[3];
    return OK;
}
