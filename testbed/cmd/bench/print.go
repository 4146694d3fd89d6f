package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// measured holds the ratios of this run for the history, by section, row and column; title is the section's.
var (
	measured = map[string]float64{}
	title    string
)

// section starts a section of the report: what was measured, and how.
func section(name, how string) {
	title = name
	fmt.Printf("\n%s\n", strings.ToUpper(name))
	for line := range strings.SplitSeq(strings.TrimSpace(how), "\n") {
		fmt.Println("  " + strings.TrimSpace(line))
	}
}

// table prints rows in columns, and keeps the ratios in them. The first row is the heading.
func table(rows [][]string) {
	for _, row := range rows[1:] {
		for i, cell := range row {
			var ratio float64
			if _, err := fmt.Sscanf(cell, "×%f", &ratio); err == nil && i > 0 {
				column := rows[0][i]
				if column == "ratio" { // of the figure before it
					column = rows[0][i-1]
				}
				measured[title+": "+strings.TrimSpace(row[0])+": "+column] = ratio
			}
		}
	}
	columns(rows)
}

// columns prints rows in columns.
func columns(rows [][]string) {
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
