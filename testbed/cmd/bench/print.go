package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// section starts a section of the report: what was measured, and how.
func section(title, how string) {
	fmt.Printf("\n%s\n", strings.ToUpper(title))
	for line := range strings.SplitSeq(strings.TrimSpace(how), "\n") {
		fmt.Println("  " + strings.TrimSpace(line))
	}
}

// table prints rows in columns. The first row is the heading.
func table(rows [][]string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, "    "+strings.Join(row, "\t"))
	}
	w.Flush()
}

const (
	kib = 1 << 10
	mib = 1 << 20
)

// mebibytes formats a number of bytes in MiB.
func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/mib) }

// millis formats a duration in ms.
func millis(d time.Duration) string { return fmt.Sprintf("%.0f ms", d.Seconds()*1000) }

// micros formats a duration in µs.
func micros(d time.Duration) string { return fmt.Sprintf("%.1f µs", d.Seconds()*1e6) }

// times formats a ratio.
func times(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("×%.2f", a/b)
}
