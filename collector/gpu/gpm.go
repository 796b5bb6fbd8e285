package gpu

import (
	"math"
	"time"
)

// GPM metric ids (NVML_GPM_METRIC_*). Shares are percent, rates MiB per second.
const (
	gpmSMActive       = 2
	gpmSMOccupancy    = 3
	gpmTensorActive   = 5
	gpmDRAMBandwidth  = 10
	gpmPCIeTransmit   = 20
	gpmPCIeReceive    = 21
	gpmNVLinkReceive  = 60
	gpmNVLinkTransmit = 61
)

var gpmIDs = []uint32{
	gpmSMActive, gpmSMOccupancy, gpmTensorActive, gpmDRAMBandwidth,
	gpmPCIeTransmit, gpmPCIeReceive, gpmNVLinkReceive, gpmNVLinkTransmit,
}

// A window between two samples that is shorter means nothing; a longer one is
// not about now.
const (
	minGPMWindow = 100 * time.Millisecond
	maxGPMWindow = 10 * time.Minute
)

// zeroPolls is how many polls in a row a busy GPU may report that it moved no
// byte. Some errors leave the counters at zero until the GPU is reset.
const zeroPolls = 3

// gpmWindow is the pair of samples of one GPU.
type gpmWindow struct {
	older, newer sample
	// at is when older was taken; zero when it was not.
	at time.Time
	// zeros counts polls in a row with work and without bytes moved.
	zeros int
}

// openGPM prepares sampling where the GPU supports it.
func (s *session) openGPM(t *tracked) {
	t.capabilities["gpm"] = false
	whole := t
	if t.isInstance() {
		// An instance is sampled through its GPU, by its id.
		if whole = t.parent; t.instance < 0 {
			return
		}
	}
	supported := false
	if c := s.call("nvmlGpmQueryDeviceSupport", func() (c code) { supported, c = whole.handle.gpmSupported(); return c }); c != success || !supported {
		return
	}
	for _, slot := range []*sample{&t.gpm.older, &t.gpm.newer} {
		var fresh sample
		if s.call("nvmlGpmSampleAlloc", func() (c code) { fresh, c = s.lib.newSample(); return c }) != success {
			s.freeSamples(t)
			return
		}
		*slot = fresh
	}
	t.capabilities["gpm"] = true
}

func (s *session) freeSamples(t *tracked) {
	for _, slot := range []*sample{&t.gpm.older, &t.gpm.newer} {
		if *slot != nil {
			s.call("nvmlGpmSampleFree", (*slot).free)
			*slot = nil
		}
	}
}

// gpm gives the metrics over the time since the previous poll; nil when there
// are none, as on the first poll.
func (s *session) gpm(t *tracked, now time.Time) map[uint32]float64 {
	w := &t.gpm
	if w.newer == nil || t.lost != "" {
		return nil
	}
	if !w.at.IsZero() && now.Sub(w.at) < minGPMWindow {
		s.reject("gpm_window_too_short")
		return nil
	}
	c := s.ask(t, "nvmlGpmSampleGet", func() code {
		if t.isInstance() {
			return w.newer.getInstance(t.parent.handle, t.instance)
		}
		return w.newer.get(t.handle)
	})
	if c != success {
		w.at = time.Time{}
		return nil
	}
	window, first := now.Sub(w.at), w.at.IsZero()
	var values []float64
	if !first && window <= maxGPMWindow {
		c = s.ask(t, "nvmlGpmMetricsGet", func() (c code) { values, c = s.lib.metrics(w.older, w.newer, gpmIDs); return c })
	}
	w.older, w.newer, w.at = w.newer, w.older, now
	if c != success || values == nil {
		return nil
	}
	metrics := make(map[uint32]float64, len(values))
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			continue
		}
		metrics[gpmIDs[i]] = v
	}
	return metrics
}

// applyGPM puts metrics into a reading. A share above 1 is measurement noise
// and clamped; what cannot be believed is left out and counted.
func (s *session) applyGPM(t *tracked, r *Reading, metrics map[uint32]float64) {
	if metrics == nil {
		return
	}
	share := func(id uint32) float64 {
		v, ok := metrics[id]
		if !ok {
			s.reject("gpm_no_value")
			return math.NaN()
		}
		if v > 100 {
			s.reject("above_one")
			return 1
		}
		return v / 100
	}
	r.SMActiveRatio = share(gpmSMActive)
	r.SMOccupancyRatio = share(gpmSMOccupancy)
	r.TensorActiveRatio = share(gpmTensorActive)
	if t.isInstance() {
		return
	}
	ratio := share(gpmDRAMBandwidth)
	if ratio == 0 && r.KernelBusyRatio > 0.9 {
		t.gpm.zeros++
	} else {
		t.gpm.zeros = 0
	}
	if t.gpm.zeros >= zeroPolls {
		s.reject("zero_while_busy")
		ratio = math.NaN()
	}
	r.MemoryBandwidthRatio = ratio
	for id, rate := range map[uint32]*float64{
		gpmPCIeTransmit: &r.PCIeTransmitBytesPerSecond, gpmPCIeReceive: &r.PCIeReceiveBytesPerSecond,
		gpmNVLinkTransmit: &r.NVLinkTransmitBytesPerSecond, gpmNVLinkReceive: &r.NVLinkReceiveBytesPerSecond,
	} {
		if v, ok := metrics[id]; ok {
			*rate = v * (1 << 20)
		}
	}
}
