package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// errExists is the error of an output file that is there already.
var errExists = errors.New("the file exists: give another name, or --force to replace it")

// writeOutput writes a file as a whole or not at all: into a new file beside
// it, which then takes its name. Without force a file that exists stays.
func writeOutput(path string, force bool, write func(io.Writer) error) (err error) {
	if err := outputFree(path, force); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return withoutName(err)
	}
	defer func() { err = withoutName(err) }()
	defer os.Remove(f.Name()) // gone already when all went well
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if force {
		return os.Rename(f.Name(), path)
	}
	// Unlike a rename, a link cannot replace a file that came up meanwhile.
	err = os.Link(f.Name(), path)
	switch {
	case errors.Is(err, os.ErrExist):
		return errExists
	case err != nil:
		// File systems without links exist.
		return os.Rename(f.Name(), path)
	}
	return nil
}

// outputsReady says, before any work is done, whether the files can be
// written; an empty path is none.
func outputsReady(force bool, paths ...string) error {
	var outputs []namedOutput
	for _, path := range paths {
		outputs = append(outputs, namedOutput{path, path})
	}
	if err := outputsDistinct(outputs...); err != nil {
		return err
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := outputFree(path, force); err != nil {
			return err
		}
		// Permissions and file systems are best asked by doing it.
		f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, withoutName(err))
		}
		f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return fmt.Errorf("writing %s: %w", path, withoutName(err))
		}
	}
	return nil
}

// withoutName is an error of a temporary file without the name of that file,
// which nobody gave.
func withoutName(err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// namedOutput is a file to write, and what names it to the one who gave it.
type namedOutput struct{ name, path string }

// outputsDistinct says whether no two outputs go to one file; an empty path is none.
func outputsDistinct(outputs ...namedOutput) error {
	seen := map[string]string{}
	for _, o := range outputs {
		if o.path == "" {
			continue
		}
		path, err := filepath.Abs(o.path)
		if err != nil {
			return fmt.Errorf("looking for %s: %w", o.path, err)
		}
		if first, ok := seen[path]; ok {
			return fmt.Errorf("%s and %s are two outputs in one file: give each a file of its own", first, o.name)
		}
		seen[path] = o.name
	}
	return nil
}

// inputsKept says whether no output would take the place of a file that is
// read, which force must not do either; an empty path is none.
func inputsKept(inputs []string, outputs ...namedOutput) error {
	for _, o := range outputs {
		if o.path == "" || o.path == standardInput { // The latter is no file to write.
			continue
		}
		out, err := os.Stat(o.path)
		if err != nil {
			continue // What is not there is nobody's input.
		}
		for _, input := range inputs {
			if in, err := os.Stat(input); err == nil && os.SameFile(in, out) {
				return fmt.Errorf("%s is %s, which this command reads: give another name", o.name, input)
			}
		}
	}
	return nil
}

// outputFree says whether a file may be written. What is neither a file nor a
// link to one, such as /dev/stdout, may not: a file would take its place.
func outputFree(path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("looking for %s: %w", path, withoutName(err))
	case info.IsDir():
		return fmt.Errorf("writing %s: it is a folder", path)
	}
	if target, err := os.Stat(path); path == standardInput || err == nil && !target.Mode().IsRegular() {
		return fmt.Errorf("writing %s: it is no file: give another name", path)
	}
	if !force {
		return fmt.Errorf("writing %s: %w", path, errExists)
	}
	return nil
}
