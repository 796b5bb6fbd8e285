package gpu

import "strconv"

// code is an NVML return code (nvmlReturn_t).
type code int32

const (
	success            code = 0
	uninitialized      code = 1
	invalidArgument    code = 2
	notSupported       code = 3
	noPermission       code = 4
	notFound           code = 6
	driverNotLoaded    code = 9
	timedOut           code = 10
	libraryNotFound    code = 12
	functionNotFound   code = 13
	gpuIsLost          code = 15
	resetRequired      code = 16
	operatingSystem    code = 17
	versionMismatch    code = 18
	argumentVersion    code = 25
	deprecatedFunction code = 26
	gpuNotFound        code = 28
	unknownDriverError code = 999
)

var codeNames = map[code]string{
	success: "success", uninitialized: "uninitialized", invalidArgument: "invalid_argument",
	notSupported: "not_supported", noPermission: "no_permission", 5: "already_initialized",
	notFound: "not_found", 7: "insufficient_size", 8: "insufficient_power",
	driverNotLoaded: "driver_not_loaded", timedOut: "timeout", 11: "irq_issue",
	libraryNotFound: "library_not_found", functionNotFound: "function_not_found", 14: "corrupted_inforom",
	gpuIsLost: "gpu_is_lost", resetRequired: "reset_required", operatingSystem: "operating_system",
	versionMismatch: "lib_rm_version_mismatch", 19: "in_use", 20: "memory", 21: "no_data",
	22: "vgpu_ecc_not_supported", 23: "insufficient_resources", 24: "freq_not_supported",
	argumentVersion: "argument_version_mismatch", deprecatedFunction: "deprecated", 27: "not_ready",
	gpuNotFound: "gpu_not_found", 29: "invalid_state", 30: "reset_type_not_supported",
	unknownDriverError: "unknown",
}

// String is the name in nvml.h, in lower case and without its prefix.
func (c code) String() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return strconv.Itoa(int(c))
}

// absent says that the reading does not exist here, which is no error: this
// GPU, driver or library lacks it (an old driver answers a struct that it does
// not know with a version mismatch).
func (c code) absent() bool {
	return c == notSupported || c == functionNotFound || c == argumentVersion || c == deprecatedFunction
}

// losesGPU says that this GPU can be read no more; the others still can.
func (c code) losesGPU() bool {
	return c == gpuIsLost || c == resetRequired || c == gpuNotFound
}

// endsSession says that no call will work until the library is set up anew.
func (c code) endsSession() bool {
	return c == uninitialized || c == driverNotLoaded || c == versionMismatch
}

// reason is why NVML cannot be used when setting it up answers c.
func (c code) reason() Reason {
	switch c {
	case driverNotLoaded, uninitialized:
		return DriverNotLoaded
	case libraryNotFound:
		return LibraryNotFound
	case functionNotFound:
		return SymbolMissing
	case versionMismatch:
		return Mismatch
	case noPermission:
		return Permission
	case operatingSystem, unknownDriverError:
		// The device cgroup was taken away or never given.
		return DeviceAccessLost
	case gpuIsLost, gpuNotFound, resetRequired:
		return NoDevice
	}
	return DriverError
}
