//go:build !unix

package main

import "os"

// terminalWidth returns the columns of a terminal; false when the file is none.
func terminalWidth(*os.File) (int, bool) { return 0, false }
