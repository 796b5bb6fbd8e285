package main

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// byteSize is a flag's value in bytes: plain, or with a decimal (GB) or
// binary (GiB) unit.
type byteSize float64

func (b *byteSize) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return fmt.Errorf("%q is no size: give bytes, or a number with a unit such as 16GB or 128KiB", text)
	}
	*b = byteSize(n)
	return nil
}

func (b *byteSize) String() string {
	if *b == 0 {
		return "0"
	}
	return humanize.Bytes(uint64(*b))
}
