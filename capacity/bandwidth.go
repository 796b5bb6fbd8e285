package capacity

// AchievableBandwidth is the share of a GPU's theoretical memory bandwidth
// that can be reached: a plain copy on an H200 moves 0.87 of it.
const AchievableBandwidth = 0.85

// StepBytes returns the bytes that one decode step reads from the memory of
// each GPU: (weights + context tokens * KV bytes per token) / GPUs, the
// numerator of model bandwidth utilisation.
func StepBytes(weightBytes, contextTokens, kvBytesPerToken float64, gpus int) float64 {
	return (weightBytes + contextTokens*kvBytesPerToken) / float64(gpus)
}

// BandwidthSaturation returns bytes per second / (ceiling * peak), where
// ceiling is the share of the theoretical peak that can be reached.
func BandwidthSaturation(bytesPerSecond, peak, ceiling float64) float64 {
	return ratio(bytesPerSecond, peak*ceiling)
}
