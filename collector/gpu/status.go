package gpu

import "time"

// Reason says why GPUs are read or not.
type Reason string

const (
	OK       Reason = "ok"
	Starting Reason = "starting"
	// Off by configuration.
	Off Reason = "off"
	// NotBuilt: this executable was built without cgo or for another system.
	NotBuilt        Reason = "not_built"
	LibraryNotFound Reason = "library_not_found"
	// SymbolMissing: the library lacks a function without which no GPU can be named.
	SymbolMissing   Reason = "symbol_missing"
	DriverNotLoaded Reason = "driver_not_loaded"
	// Mismatch of the library's and the driver's version.
	Mismatch   Reason = "mismatch"
	Permission Reason = "permission"
	// DeviceAccessLost: the container lost or never had access to the device
	// files; only a restart of the container gives it back.
	DeviceAccessLost Reason = "device_access_lost"
	NoDevice         Reason = "no_device"
	// DeviceNotFound: none of the configured devices is visible.
	DeviceNotFound Reason = "device_not_found"
	// DevicesLost: every expected GPU is lost.
	DevicesLost Reason = "devices_lost"
	// Stuck: a driver call does not return.
	Stuck Reason = "stuck"
	// DriverError: NVML answered with a code that has no reason of its own.
	DriverError Reason = "driver_error"
	// Panicked: the goroutine that owns the library panicked; it was restarted.
	Panicked Reason = "panic"
)

// Status is how reading GPUs goes.
type Status struct {
	// Up is true while readings are fresh. Reason is OK then.
	Up     bool
	Reason Reason
	// Detail says in words what went wrong and what to do; empty while up.
	Detail string
	// Visible GPUs, and how many of them are expected to be ours.
	Visible  int
	Expected int
	// SelectionAmbiguous: several GPUs are visible and nothing says which are
	// the engine's. Selection is how they were chosen: flag, only, process,
	// device_file or ambiguous.
	SelectionAmbiguous bool
	Selection          string
	// LastSuccess is the end of the newest complete poll; zero before the first.
	LastSuccess time.Time
	// CollectDuration is what that poll took.
	CollectDuration time.Duration
	// Calls by NVML function, Rejected samples by reason; both since the start.
	Calls    map[string]Call
	Rejected map[string]uint64
	// Panics recovered in the goroutine that owns the library.
	Panics uint64
	// InFlight is the driver call that has not returned, and since when.
	InFlight      string
	InFlightSince time.Time
}

// Call is what one NVML function cost and answered since the start.
type Call struct {
	Count uint64
	Total time.Duration
	Max   time.Duration
	// Errors by return code; that a reading does not exist is none.
	Errors map[string]uint64
}

// Snapshot is everything known at one moment. It is never changed.
type Snapshot struct {
	At     time.Time
	Status Status
	// Readings of the expected GPUs, lost ones included.
	Readings []Reading
}
