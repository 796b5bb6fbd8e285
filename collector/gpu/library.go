package gpu

import "fmt"

// library is what is called of NVML. One goroutine makes every call. A
// function that the library lacks answers functionNotFound.
type library interface {
	// open loads and initialises the library. Its error is an *openError.
	open() error
	shutdown() code
	driverVersion() (string, code)
	deviceCount() (int, code)
	deviceByIndex(index int) (device, code)
	newEventSet() (eventSet, code)
	newSample() (sample, code)
	// metrics gives GPM metrics over the time between two samples, in ids'
	// order and in NVML's units; NaN where there is none.
	metrics(older, newer sample, ids []uint32) ([]float64, code)
}

// device is a GPU or a MIG instance. Units are NVML's.
type device interface {
	uuid() (string, code)
	name() (string, code)
	minor() (int, code)
	pciBusID() (string, code)
	architecture() (uint32, code)
	// memory in bytes.
	memory() (memory, code)
	// utilization in percent of time.
	utilization() (utilization, code)
	// powerUsage and enforcedPowerLimit in milliwatts.
	powerUsage() (uint32, code)
	enforcedPowerLimit() (uint32, code)
	// energy in millijoules.
	energy() (uint64, code)
	temperature() (uint32, code)
	marginTemperature() (int32, code)
	// Clocks in megahertz.
	clock(domain clockDomain) (uint32, code)
	maxClock(domain clockDomain) (uint32, code)
	// busWidth in bits.
	busWidth() (uint32, code)
	clocksEventReasons() (uint64, code)
	// fieldValues fills in what is asked for in fs.
	fieldValues(fs fields) code
	computeProcesses() ([]int, code)

	migEnabled() (bool, code)
	maxMIGDevices() (int, code)
	migDevice(index int) (device, code)
	gpuInstance() (int, code)

	supportedEvents() (uint64, code)
	gpmSupported() (bool, code)
}

type memory struct{ total, reserved, free, used uint64 }

type utilization struct{ kernel, memory uint32 }

// clockDomain is nvmlClockType_t.
type clockDomain uint32

const (
	clockSM     clockDomain = 1
	clockMemory clockDomain = 2
)

// eventSet collects events of the devices that are registered with it.
type eventSet interface {
	// register asks for events of d; they come back with this uuid, since a
	// dying GPU may not tell its own.
	register(d device, uuid string, kinds uint64) code
	// wait answers timedOut when no event came.
	wait(milliseconds uint32) (event, code)
	free() code
}

type event struct {
	uuid string
	kind uint64
	// data is the XID of an XID event.
	data uint64
}

// sample is one GPM sample.
type sample interface {
	get(d device) code
	// getInstance samples a GPU instance of the MIG-enabled GPU d.
	getInstance(d device, instance int) code
	free() code
}

// openError is why the library cannot be used.
type openError struct {
	reason Reason
	text   string
}

func (e *openError) Error() string { return fmt.Sprintf("%s: %s", e.reason, e.text) }

// architectures by nvmlDeviceArchitecture_t.
var architectures = map[uint32]string{
	2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere",
	8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin",
}
