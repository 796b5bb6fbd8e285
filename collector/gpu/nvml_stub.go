//go:build !linux || !cgo

package gpu

// unbuilt stands where the binding to NVML cannot be built.
type unbuilt struct{ library }

func newLibrary(string) library { return unbuilt{} }

func (unbuilt) open() error {
	return &openError{NotBuilt, "this executable has no NVML binding: it needs a build for Linux with cgo"}
}
