/*
 * A stand-in for libnvidia-ml.so.1 that answers from a script, so that the
 * real binding can be exercised where there is no GPU.
 *
 * FAKENVML_SCRIPT names a text file of lines "WHO KEY VALUE". WHO is a GPU's
 * index, an instance of it as 0/1, or * for any; a # starts a comment. The
 * last line that fits wins, so a change is appended. The file is read at each
 * call: what it says may change while a process runs.
 *
 *   * driver 570.124.06               any value that has no line is not supported
 *   * gpus 1                          how many GPUs are visible
 *   0 uuid GPU-...                    see fakenvml/h100.txt for every key
 *   0 field.230 1                     a field value; field.165.3 has scope 3
 *   0 gpm.10 71.5                     a GPM metric
 *   0 event 7 8 79                    the event with sequence number 7: kind 8 (XID), data 79
 *   0 result.nvmlDeviceGetName 15     what a function returns instead of working
 *   * result 18                       what every function returns
 *   0 hang.nvmlDeviceGetPowerUsage 1  a function that does not return while this holds
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nvml.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_INSTANCES 8
#define ANY (-1)

struct nvmlDevice_st {
    int gpu, instance; /* instance is ANY for a whole GPU */
};
struct nvmlEventSet_st {
    long seen; /* sequence number of the newest event that was delivered */
};
struct nvmlGpmSample_st {
    int gpu, instance; /* of the device that was sampled */
};

static struct nvmlDevice_st devices[MAX_GPUS][MAX_INSTANCES + 1];

static nvmlDevice_t device_of(int gpu, int instance)
{
    nvmlDevice_t d;
    d.handle = &devices[gpu][instance + 1];
    return d;
}

/* fits says whether a line's WHO names the device. */
static int fits(const char *who, int gpu, int instance)
{
    char name[32];
    if (strcmp(who, "*") == 0)
        return 1;
    if (instance == ANY)
        snprintf(name, sizeof name, "%d", gpu);
    else
        snprintf(name, sizeof name, "%d/%d", gpu, instance);
    return strcmp(who, name) == 0;
}

/* look finds the value of the last line that fits; 0 if there is none. */
static int look(int gpu, int instance, const char *key, char *value, size_t size)
{
    const char *path = getenv("FAKENVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], who[32], name[96];
    int found = 0, rest;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#' || sscanf(line, "%31s %95s %n", who, name, &rest) < 2)
            continue;
        if (strcmp(name, key) || !fits(who, gpu, instance))
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + rest);
        found = 1;
    }
    fclose(file);
    return found;
}

/* begin does what the script says of a function: hang, or return at once. */
static nvmlReturn_t begin(int gpu, int instance, const char *function)
{
    char key[128], value[128];
    snprintf(key, sizeof key, "hang.%s", function);
    while (look(gpu, instance, key, value, sizeof value) && atoi(value))
        usleep(10000);
    snprintf(key, sizeof key, "result.%s", function);
    if (look(gpu, instance, key, value, sizeof value) || look(gpu, instance, "result", value, sizeof value))
        return (nvmlReturn_t)atoi(value);
    return NVML_SUCCESS;
}

#define BEGIN(gpu, instance)                              \
    do {                                                  \
        nvmlReturn_t r_ = begin(gpu, instance, __func__); \
        if (r_ != NVML_SUCCESS)                           \
            return r_;                                    \
    } while (0)
#define BEGIN_DEVICE(d)                     \
    do {                                    \
        if (!(d).handle)                           \
            return NVML_ERROR_INVALID_ARGUMENT; \
        BEGIN((d).handle->gpu, (d).handle->instance);     \
    } while (0)

static nvmlReturn_t number(nvmlDevice_t d, const char *key, double *v)
{
    char value[128];
    if (!look(d.handle->gpu, d.handle->instance, key, value, sizeof value))
        return NVML_ERROR_NOT_SUPPORTED;
    *v = strtod(value, NULL);
    return NVML_SUCCESS;
}

static nvmlReturn_t text(nvmlDevice_t d, const char *key, char *out, unsigned int length)
{
    char value[256];
    if (!look(d.handle->gpu, d.handle->instance, key, value, sizeof value))
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

/* A getter whose answer is one number of the script. */
#define GETTER(function, type, key)                        \
    EXPORT nvmlReturn_t function(nvmlDevice_t d, type *out) \
    {                                                      \
        double v;                                          \
        nvmlReturn_t r;                                    \
        BEGIN_DEVICE(d);                                   \
        if ((r = number(d, key, &v)) == NVML_SUCCESS)      \
            *out = (type)v;                                \
        return r;                                          \
    }

static int count_of(int gpu, const char *key)
{
    char value[32];
    return look(gpu, ANY, key, value, sizeof value) ? atoi(value) : 0;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    int g, i;
    BEGIN(ANY, ANY);
    for (g = 0; g < MAX_GPUS; g++)
        for (i = 0; i <= MAX_INSTANCES; i++) {
            devices[g][i].gpu = g;
            devices[g][i].instance = i - 1;
        }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    BEGIN(ANY, ANY);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t r)
{
    return r == NVML_SUCCESS ? "Success" : "a code of the script";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    BEGIN(ANY, ANY);
    return text(device_of(0, ANY), "driver", version, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    BEGIN(ANY, ANY);
    *count = (unsigned int)count_of(ANY, "gpus");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN((int)index, ANY);
    *device = device_of((int)index, ANY);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length)
{
    BEGIN_DEVICE(d);
    return text(d, "uuid", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length)
{
    BEGIN_DEVICE(d);
    return text(d, "name", name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
    BEGIN_DEVICE(d);
    memset(pci, 0, sizeof *pci);
    return text(d, "pci", pci->busId, sizeof pci->busId);
}

GETTER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
GETTER(nvmlDeviceGetPowerUsage, unsigned int, "power_milliwatts")
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_milliwatts")
GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_millijoules")
GETTER(nvmlDeviceGetMemoryBusWidth, unsigned int, "bus_width")
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks_event_reasons")
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clocks_event_reasons")
GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, "events_supported")
GETTER(nvmlDeviceGetGpuInstanceId, unsigned int, "gpu_instance")

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
    double v;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((r = number(d, "temperature", &v)) == NVML_SUCCESS)
        *celsius = (unsigned int)v;
    return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t d, nvmlMarginTemperature_t *margin)
{
    double v;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if (margin->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if ((r = number(d, "temperature_margin", &v)) == NVML_SUCCESS)
        margin->marginTemperature = (int)v;
    return r;
}

static nvmlReturn_t clock_of(nvmlDevice_t d, nvmlClockType_t domain, const char *sm, const char *memory, unsigned int *mhz)
{
    double v;
    nvmlReturn_t r;
    const char *key = domain == NVML_CLOCK_SM ? sm : domain == NVML_CLOCK_MEM ? memory : "";
    if ((r = number(d, key, &v)) == NVML_SUCCESS)
        *mhz = (unsigned int)v;
    return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t domain, unsigned int *mhz)
{
    BEGIN_DEVICE(d);
    return clock_of(d, domain, "clock_sm", "clock_memory", mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, nvmlClockType_t domain, unsigned int *mhz)
{
    BEGIN_DEVICE(d);
    return clock_of(d, domain, "clock_max_sm", "clock_max_memory", mhz);
}

static nvmlReturn_t memory_of(nvmlDevice_t d, double *total, double *reserved, double *used)
{
    nvmlReturn_t r = number(d, "memory_total", total);
    if (r == NVML_SUCCESS)
        r = number(d, "memory_used", used);
    if (r == NVML_SUCCESS && number(d, "memory_reserved", reserved) != NVML_SUCCESS)
        *reserved = 0;
    return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
    double total, reserved, used;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if (m->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if ((r = memory_of(d, &total, &reserved, &used)) != NVML_SUCCESS)
        return r;
    m->total = (unsigned long long)total;
    m->reserved = (unsigned long long)reserved;
    m->used = (unsigned long long)used;
    m->free = m->total - m->reserved - m->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
    double total, reserved, used;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if ((r = memory_of(d, &total, &reserved, &used)) != NVML_SUCCESS)
        return r;
    m->total = (unsigned long long)total;
    m->used = (unsigned long long)(used + reserved);
    m->free = m->total - m->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
    double gpu, memory;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if ((r = number(d, "busy_percent", &gpu)) != NVML_SUCCESS || (r = number(d, "memory_busy_percent", &memory)) != NVML_SUCCESS)
        return r;
    u->gpu = (unsigned int)gpu;
    u->memory = (unsigned int)memory;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
    int i;
    BEGIN_DEVICE(d);
    for (i = 0; i < count; i++) {
        char key[48], value[64];
        if (values[i].scopeId == 0)
            snprintf(key, sizeof key, "field.%u", values[i].fieldId);
        else if (values[i].scopeId == 0xFFFFFFFFu)
            snprintf(key, sizeof key, "field.%u.all", values[i].fieldId);
        else
            snprintf(key, sizeof key, "field.%u.%u", values[i].fieldId, values[i].scopeId);
        if (!look(d.handle->gpu, d.handle->instance, key, value, sizeof value)) {
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            continue;
        }
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = strtoull(value, NULL, 10);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos)
{
    char value[256], *at = value, *end;
    unsigned int room = *count, n = 0;
    long pid;
    BEGIN_DEVICE(d);
    if (!look(d.handle->gpu, d.handle->instance, "processes", value, sizeof value))
        value[0] = 0;
    for (pid = strtol(at, &end, 10); end != at; pid = strtol(at, &end, 10)) {
        if (n < room && infos) {
            memset(&infos[n], 0, sizeof infos[n]);
            infos[n].pid = (unsigned int)pid;
        }
        n++;
        at = end;
    }
    *count = n;
    return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending)
{
    double v;
    nvmlReturn_t r;
    BEGIN_DEVICE(d);
    if ((r = number(d, "mig", &v)) == NVML_SUCCESS)
        *current = *pending = v != 0;
    return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *count)
{
    BEGIN_DEVICE(d);
    *count = MAX_INSTANCES - 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *instance)
{
    char value[96];
    BEGIN_DEVICE(d);
    if (index >= MAX_INSTANCES || !look(d.handle->gpu, (int)index, "uuid", value, sizeof value) || strncmp(value, "MIG-", 4))
        return NVML_ERROR_NOT_FOUND;
    *instance = device_of(d.handle->gpu, (int)index);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    BEGIN(ANY, ANY);
    set->handle = calloc(1, sizeof *set->handle);
    return set->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    BEGIN(ANY, ANY);
    free(set.handle);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long kinds, nvmlEventSet_t set)
{
    BEGIN_DEVICE(d);
    return kinds && set.handle ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* next_event delivers the event with the smallest number that is above seen. */
static int next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    const char *path = getenv("FAKENVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    long best = 0, sequence;
    int gpu;
    unsigned long long kind, value;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%d event %ld %llu %llu", &gpu, &sequence, &kind, &value) != 4)
            continue;
        if (gpu < 0 || gpu >= MAX_GPUS || sequence <= set.handle->seen || (best && sequence >= best))
            continue;
        best = sequence;
        memset(data, 0, sizeof *data);
        data->device = device_of(gpu, ANY);
        data->eventType = kind;
        data->eventData = value;
        data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFFu;
    }
    fclose(file);
    if (best)
        set.handle->seen = best;
    return best != 0;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    unsigned int waited = 0;
    BEGIN(ANY, ANY);
    for (;;) {
        if (next_event(set, data))
            return NVML_SUCCESS;
        if (waited >= timeout)
            return NVML_ERROR_TIMEOUT;
        usleep(10000);
        waited += 10;
    }
}

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *support)
{
    double v;
    BEGIN_DEVICE(d);
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = number(d, "gpm", &v) == NVML_SUCCESS && v != 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    BEGIN(ANY, ANY);
    sample->handle = calloc(1, sizeof *sample->handle);
    return sample->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    BEGIN(ANY, ANY);
    free(sample.handle);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t sample)
{
    BEGIN_DEVICE(d);
    sample.handle->gpu = d.handle->gpu;
    sample.handle->instance = ANY;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned int id, nvmlGpmSample_t sample)
{
    int i;
    BEGIN_DEVICE(d);
    for (i = 0; i < MAX_INSTANCES; i++) {
        char value[32];
        if (look(d.handle->gpu, i, "gpu_instance", value, sizeof value) && (unsigned int)atoi(value) == id) {
            sample.handle->gpu = d.handle->gpu;
            sample.handle->instance = i;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    unsigned int i;
    if (get->version != NVML_GPM_METRICS_GET_VERSION || !get->sample1.handle || !get->sample2.handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN(get->sample2.handle->gpu, get->sample2.handle->instance);
    for (i = 0; i < get->numMetrics; i++) {
        char key[32], value[64];
        snprintf(key, sizeof key, "gpm.%u", get->metrics[i].metricId);
        if (!look(get->sample2.handle->gpu, get->sample2.handle->instance, key, value, sizeof value)) {
            get->metrics[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            continue;
        }
        get->metrics[i].nvmlReturn = NVML_SUCCESS;
        get->metrics[i].value = strtod(value, NULL);
    }
    return NVML_SUCCESS;
}
