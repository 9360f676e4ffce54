/* A stand-in for libcuda.so.1: what devices say without a context. Nothing else works.
 *
 * Its answers are in the file `cuda` beside the library:
 *   version NUMBER | init CODE | block FUNCTION
 *   device INDEX multicast posix_handles gpudirect_vmm
 *   pair FIRST SECOND access native_atomics
 * Every call is noted in the file `cuda-calls`. Making a context ends the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[3072];

static int look(const char *format, const int *key, int keys, int *answer, int answers) {
    char path[4096], line[512];
    int found = 0, v[6];
    snprintf(path, sizeof path, "%s/cuda", folder);
    FILE *file = fopen(path, "r");
    if (file == NULL) abort();
    while (!found && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, format, v, v + 1, v + 2, v + 3, v + 4, v + 5) != keys + answers) continue;
        found = memcmp(v, key, sizeof(int) * (size_t)keys) == 0;
        if (found) memcpy(answer, v + keys, sizeof(int) * (size_t)answers);
    }
    fclose(file);
    return found;
}

static void called(const char *function) {
    Dl_info where;
    char path[4096], line[256], word[96];
    if (folder[0] == 0 && dladdr((void *)&folder, &where) != 0) {
        snprintf(folder, sizeof folder, "%s", where.dli_fname);
        char *end = strrchr(folder, '/');
        if (end != NULL) *end = 0;
    }
    snprintf(path, sizeof path, "%s/cuda-calls", folder);
    FILE *file = fopen(path, "a");
    if (file == NULL) abort();
    fprintf(file, "%s\n", function);
    fclose(file);
    snprintf(path, sizeof path, "%s/cuda", folder);
    file = fopen(path, "r");
    if (file == NULL) abort();
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "block %95s", word) == 1 && strcmp(word, function) == 0)
            for (;;) pause();
    fclose(file);
}

int cuInit(unsigned int flags) {
    int code = 0;
    called(__func__);
    look("init %d", NULL, 0, &code, 1);
    return flags != 0 ? 1 : code;
}
int cuDriverGetVersion(int *version) {
    called(__func__);
    return look("version %d", NULL, 0, version, 1) ? 0 : 999;
}
int cuDeviceGetCount(int *count) {
    int values[3];
    called(__func__);
    for (*count = 0; look("device %d %d %d %d", count, 1, values, 3); ++*count) continue;
    return 0;
}
int cuDeviceGet(int *device, int ordinal) {
    called(__func__);
    *device = ordinal;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int values[3];
    called(__func__);
    if (!look("device %d %d %d %d", &device, 1, values, 3)) return 101;
    switch (attribute) {
    case 132: *value = values[0]; return 0;
    case 103: *value = values[1]; return 0;
    case 110: *value = values[2]; return 0;
    default: return 1;
    }
}
int cuDeviceCanAccessPeer(int *access, int device, int peer) {
    int key[2] = {device, peer}, values[2];
    called(__func__);
    if (!look("pair %d %d %d %d", key, 2, values, 2)) return 101;
    *access = values[0];
    return 0;
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
    int key[2] = {device, peer}, values[2];
    called(__func__);
    if (attribute != 3 || !look("pair %d %d %d %d", key, 2, values, 2)) return 101;
    *value = values[1];
    return 0;
}
int cuCtxCreate_v2(void **context, unsigned int flags, int device) {
    (void)context, (void)flags, (void)device;
    called(__func__);
    abort();
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)context, (void)device;
    called(__func__);
    abort();
}
