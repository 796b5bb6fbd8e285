package gpu

import (
	"maps"
	"slices"
	"time"
)

// XIDClass is what an XID means for capacity.
type XIDClass string

// The classes follow the immediate resolution that NVIDIA's XID catalogue
// names; an XID is evidence, and RecoveryAction the driver's verdict.
const (
	// RestartApp: the engine dies or must be restarted; the GPU is fine.
	RestartApp XIDClass = "restart_app"
	// ResetGPU: the GPU is lost until it is reset.
	ResetGPU XIDClass = "reset_gpu"
	// RestartNode: the GPU is gone until the node restarts.
	RestartNode XIDClass = "restart_node"
	// Investigate: another XID or its sub-code decides.
	Investigate XIDClass = "investigate"
	// RecoveryInfo: the recovery action has changed.
	RecoveryInfo XIDClass = "recovery_info"
	Ignore       XIDClass = "ignore"
	// OtherXID: the catalogue names no action of these kinds.
	OtherXID XIDClass = "other"
)

var xidClasses = map[XIDClass][]uint64{
	RestartApp: {
		8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94,
		96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
	},
	ResetGPU:     {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
	RestartNode:  {79, 151},
	Investigate:  {45, 48, 74, 144, 145, 146, 147, 148, 149, 150},
	RecoveryInfo: {154},
	Ignore:       {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161},
}

// ClassOf is the class of an XID.
func ClassOf(xid uint64) XIDClass {
	for class, list := range xidClasses {
		if slices.Contains(list, xid) {
			return class
		}
	}
	return OtherXID
}

// maxXIDs is how many distinct XIDs of one GPU are counted; it bounds the
// series. NVIDIA's catalogue has fewer.
const maxXIDs = 256

// xidCounts are the XIDs of one GPU. They outlive the library's sessions.
type xidCounts map[uint64]XIDCount

// newXIDCounts starts the XIDs that cost the GPU at 0, so that an increase
// sees the first one.
func newXIDCounts() xidCounts {
	counts := xidCounts{}
	for _, class := range []XIDClass{ResetGPU, RestartNode} {
		for _, xid := range xidClasses[class] {
			counts[xid] = XIDCount{XID: xid, Class: class}
		}
	}
	return counts
}

// add counts one occurrence and says whether it could.
func (c xidCounts) add(xid uint64, at time.Time) bool {
	n, ok := c[xid]
	if !ok {
		if len(c) >= maxXIDs {
			return false
		}
		n = XIDCount{XID: xid, Class: ClassOf(xid)}
	}
	n.Count++
	n.Last = at
	c[xid] = n
	return true
}

func (c xidCounts) list() []XIDCount {
	list := make([]XIDCount, 0, len(c))
	for _, xid := range slices.Sorted(maps.Keys(c)) {
		list = append(list, c[xid])
	}
	return list
}

// Event types (nvmlEventType*) that say something about capacity.
const (
	eventDoubleBitECC      = 0x2
	eventXID               = 0x8
	eventRetirementFailure = 0x800
	eventFatalPoison       = 0x2000
	eventUnavailable       = 0x4000
	eventRecoveryAction    = 0x8000

	eventsWanted = eventDoubleBitECC | eventXID | eventRetirementFailure |
		eventFatalPoison | eventUnavailable | eventRecoveryAction
)

func eventName(kind uint64) string {
	switch kind {
	case eventDoubleBitECC:
		return "double_bit_ecc"
	case eventXID:
		return "xid"
	case eventRetirementFailure:
		return "dram_retirement_failure"
	case eventFatalPoison:
		return "fatal_poison"
	case eventUnavailable:
		return "gpu_unavailable"
	case eventRecoveryAction:
		return "recovery_action"
	}
	return "other"
}
