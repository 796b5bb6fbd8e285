//go:build !linux

package probe

func shortSlices() {}
