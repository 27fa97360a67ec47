/* Stands in for NVIDIA's library, libnvidia-ml.so.1: GPUs as the file that $GPU_STATE names has them at each call.
 *
 * Lines: `init ERROR`, `hang FUNCTION` (that call never returns), and one `gpu UUID ADDRESS KEY=NUMBER...` for each,
 * with the keys error (of every call about it), handle_error, recovery, ecc_c, ecc_u, pending, failed, slow, links,
 * link_errors, busy, memory_busy, power, and pids=N,N. What a line does not have is not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3
#define TOO_SMALL 7
#define INVALID 2

typedef struct { char bus_id_legacy[16]; unsigned domain, bus, device, ids, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type; int result;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_t;

static int count, init_error;
static char gpus[32][1024], hangs[16][64];
static int hang_count;

static void enter(const char *name) {
    char line[1024];
    count = init_error = hang_count = 0;
    FILE *file = fopen(getenv("GPU_STATE"), "r");
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "gpu ", 4) && count < 32) strcpy(gpus[count++], line + 4);
        else if (!strncmp(line, "init ", 5)) init_error = atoi(line + 5);
        else if (!strncmp(line, "hang ", 5) && hang_count < 16) sscanf(line + 5, "%63s", hangs[hang_count++]);
    }
    if (file) fclose(file);
    for (int i = 0; i < hang_count; i++)
        if (!strcmp(hangs[i], name)) for (;;) pause();
}

static const char *find(long device, const char *key) {
    if (device < 1 || device > count) return NULL;
    size_t length = strlen(key);
    for (char *at = strchr(gpus[device - 1], ' '); at; at = strchr(at + 1, ' '))
        if (!strncmp(at + 1, key, length) && at[1 + length] == '=') return at + 2 + length;
    return NULL;
}

static int number(long device, const char *key, unsigned long long *value) {
    const char *text = find(device, "error");
    if (device < 1 || device > count) return INVALID;
    if (text) return atoi(text);
    text = find(device, key);
    if (!text) return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return 0;
}

static int word(long device, int which, char *target, unsigned size) {
    char copy[1024], *rest, *text;
    if (device < 1 || device > count) return INVALID;
    if (find(device, "error") && atoi(find(device, "error")) && find(device, "nameless")) return atoi(find(device, "error"));
    strcpy(copy, gpus[device - 1]);
    text = strtok_r(copy, " \n", &rest);
    while (which-- > 0) text = strtok_r(NULL, " \n", &rest);
    snprintf(target, size, "%s", text);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) { enter("nvmlInit"); return init_error; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "an error of the stand-in"; }
int nvmlDeviceGetCount_v2(unsigned *result) { enter("nvmlDeviceGetCount"); *result = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    enter("nvmlDeviceGetHandleByIndex");
    *device = (void *) (long) (index + 1);
    const char *error = find(index + 1, "handle_error");
    return error ? atoi(error) : index < (unsigned) count ? 0 : INVALID;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { enter("nvmlDeviceGetUUID"); return word((long) device, 0, uuid, size); }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { enter("nvmlDeviceGetName"); snprintf(name, size, "Stand-in"); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *info) {
    enter("nvmlDeviceGetPciInfo");
    memset(info, 0, sizeof *info);
    return word((long) device, 1, info->bus_id, sizeof info->bus_id);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *size, process_t *processes) {
    enter("nvmlDeviceGetComputeRunningProcesses");
    unsigned long long ignored;
    unsigned found = 0;
    int error = number((long) device, "error", &ignored);
    if (error != NOT_SUPPORTED) return error;
    for (const char *at = find((long) device, "pids"); at && *at; found++) {
        unsigned pid = strtoul(at, (char **) &at, 10);
        if (processes && found < *size) processes[found] = (process_t) {pid, 1 << 20, 0, 0};
        if (*at != ',') { found++; break; }
        at++;
    }
    int fits = processes ? found <= *size : !found;
    *size = found;
    return fits ? 0 : TOO_SMALL;
}
int nvmlDeviceGetFieldValues(void *device, int size, field_t *fields) {
    enter("nvmlDeviceGetFieldValues");
    unsigned long long value = 0;
    int error = find((long) device, "error") ? number((long) device, "recovery", &value) : 0;
    if (error) return error;
    for (int i = 0; i < size; i++) {
        fields[i].result = fields[i].field == 230 ? number((long) device, "recovery", &value) : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].value.u = (unsigned) value;
    }
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *result) {
    enter("nvmlDeviceGetTotalEccErrors");
    return number((long) device, type ? "ecc_u" : "ecc_c", result);
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    enter("nvmlDeviceGetRemappedRows");
    unsigned long long waits = 0, broken = 0;
    int first = number((long) device, "pending", &waits), second = number((long) device, "failed", &broken);
    *corrected = *uncorrected = 0, *pending = waits, *failed = broken;
    return first && second ? second : 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *result) {
    enter("nvmlDeviceGetCurrentClocksEventReasons");
    return number((long) device, "slow", result);
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    enter("nvmlDeviceGetUtilizationRates");
    unsigned long long busy = 0, memory = 0;
    int error = number((long) device, "busy", &busy);
    number((long) device, "memory_busy", &memory);
    rates[0] = busy, rates[1] = memory;
    return error;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    enter("nvmlDeviceGetPowerUsage");
    unsigned long long power = 0;
    int error = number((long) device, "power", &power);
    *milliwatts = power;
    return error;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    enter("nvmlDeviceGetNvLinkState");
    unsigned long long links = 0;
    int error = number((long) device, "links", &links);
    *active = link < links;
    return error;
}
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int counter, unsigned long long *result) {
    enter("nvmlDeviceGetNvLinkErrorCounter");
    return number((long) device, "link_errors", result);
}
