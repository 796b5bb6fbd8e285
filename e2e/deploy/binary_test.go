package deploy

import (
	"debug/buildinfo"
	"debug/elf"
	"path/filepath"
	"slices"
	"testing"
)

// checkLazy fails unless the binary binds its symbols when they are first
// called. NVML's library is opened by dlopen, so that its symbols are unknown
// when the program starts: bound then, it would end before main.
func checkLazy(t *testing.T, path string) {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if file.Section(".dynamic") == nil {
		t.Fatal("linked statically: dlopen would not work")
	}
	for tag, now := range map[elf.DynTag]uint64{
		elf.DT_FLAGS:    uint64(elf.DF_BIND_NOW),
		elf.DT_FLAGS_1:  uint64(elf.DF_1_NOW),
		elf.DT_BIND_NOW: 0,
	} {
		values, err := file.DynValue(tag)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(values, func(v uint64) bool { return tag == elf.DT_BIND_NOW || v&now != 0 }) {
			t.Errorf("%s %#x: symbols are bound when the program starts", tag, values)
		}
	}
}

func TestBindsLazily(t *testing.T) { checkLazy(t, product) }

// Distributions put hardening flags into CGO_LDFLAGS.
func TestBindsLazilyUnderHardening(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "headroom_exporter")
	if output, err := makeBuild(binary, "CGO_LDFLAGS=-O2 -g -Wl,-z,relro -Wl,-z,now"); err != nil {
		t.Fatalf("make build: %v\n%s", err, output)
	}
	checkLazy(t, binary)
}

func TestBuildFlags(t *testing.T) {
	info, err := buildinfo.ReadFile(product)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	for key, want := range map[string]string{"-trimpath": "true", "CGO_ENABLED": "1"} {
		if settings[key] != want {
			t.Errorf("built with %s=%q, want %q", key, settings[key], want)
		}
	}
}
