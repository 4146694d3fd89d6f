package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/xrash/smetrics"
)

// origin is the place of a value: a file and a line of it.
type origin struct {
	file string
	line int
}

func (o origin) String() string { return o.file + ":" + strconv.Itoa(o.line) }

// setting is one value of a known key as a file has it, before it is validated.
type setting struct {
	origin
	key string
	raw any
}

// table is a [[window]] table: its settings, and the line that begins it.
type table struct {
	origin
	settings []setting
}

// parsed is what one file says.
type parsed struct {
	file     string
	settings []setting
	windows  []table
	// windowsAt is where the file first says something about windows. Its line is 0
	// if the file says nothing about them.
	windowsAt origin
	errs      Errors
}

// parse finds the settings in the text of a file, and its mistakes.
func parse(file, text string) parsed {
	p := parsed{file: file}
	if _, err := toml.Decode(text, new(map[string]any)); err != nil {
		e := &Error{File: file, Err: err}
		if syntax, ok := errors.AsType[toml.ParseError](err); ok {
			e = &Error{File: file, Line: syntax.Position.Line, Key: syntax.LastKey, Got: clip(syntax.Message), Expected: "TOML"}
		}
		p.errs = Errors{e}
		return p
	}
	all, tooLong := statements(text)
	if tooLong > 0 {
		p.errs = Errors{{File: file, Line: tooLong, Got: "a value of many lines", Expected: fmt.Sprintf("at most %d lines", maxStatement)}}
		return p
	}
	var within toml.Key // the table of the last header
	skip := false       // that table was refused
	for _, s := range all {
		at := origin{file, s.line}
		if !s.header {
			if !skip {
				p.walk(at, within, s.content)
			}
			continue
		}
		mistakes, known := len(p.errs), len(p.settings)
		p.walk(at, nil, s.content)
		within, skip = s.key, len(p.errs) > mistakes || len(p.settings) > known
	}
	return p
}

// statement is a header of a table, or a key with its value.
type statement struct {
	line    int // on which it begins
	header  bool
	key     toml.Key
	content map[string]any
}

// maxStatement bounds the lines of one value, because each line costs another decoding
// of the value.
const maxStatement = 200

// statements splits a valid text. The library reports the line of a value only in an
// error, and in a list of tables not even there. But it accepts the first lines of a
// value that has several lines only when the value is complete. So the smallest runs of
// lines that it accepts are the statements. tooLong is the line on which a statement
// begins that has more than maxStatement lines, and 0 if there is none.
func statements(text string) (all []statement, tooLong int) {
	begin, lines, size := 1, 0, 0
	for line := range strings.Lines(text) {
		lines, size = lines+1, size+len(line)
		s := statement{line: begin, header: strings.HasPrefix(strings.TrimLeft(text[:size], " \t\ufeff"), "[")}
		md, err := toml.Decode(text[:size], &s.content)
		if err != nil && lines == maxStatement {
			break
		}
		if err != nil {
			continue
		}
		if keys := md.Keys(); len(keys) > 0 {
			s.key = keys[len(keys)-1]
			all = append(all, s)
		}
		begin, text = begin+lines, text[size:]
		lines, size = 0, 0
	}
	if text != "" {
		return all, begin
	}
	return all, 0
}

// walk adds the settings in content, which is in the table prefix.
func (p *parsed) walk(at origin, prefix toml.Key, content map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(content)) {
		path, value := append(slices.Clone(prefix), name), content[name]
		key := path.String() // quotes a name with a dot in it
		inner, isMap := value.(map[string]any)
		switch {
		case key == windowTable:
			p.addWindows(at, value)
		case find(key) != nil && prefix.String() == windowTable:
			w := &p.windows[len(p.windows)-1]
			w.settings = append(w.settings, setting{at, key, value})
		case find(key) != nil:
			p.settings = append(p.settings, setting{at, key, value})
		case !isTable(key):
			p.wrong(at, clip(key), "not a known key", closestKey(key))
		case !isMap:
			p.wrong(at, key, show(value), "a table ["+key+"]")
		default:
			p.walk(at, path, inner)
		}
	}
}

// addWindows adds the tables in the value of the key window.
func (p *parsed) addWindows(at origin, value any) {
	var tables []map[string]any
	ok := true
	switch list := value.(type) {
	case []map[string]any:
		tables = list
	case []any:
		for _, v := range list {
			t, isMap := v.(map[string]any)
			tables, ok = append(tables, t), ok && isMap
		}
	default:
		ok = false
	}
	if !ok {
		p.wrong(at, windowTable, show(value), "tables [["+windowTable+"]]")
		return
	}
	if p.windowsAt.line == 0 {
		p.windowsAt = at
	}
	for _, t := range tables {
		p.windows = append(p.windows, table{origin: at})
		p.walk(at, toml.Key{windowTable}, t)
	}
}

func (p *parsed) wrong(at origin, key, got, expected string) {
	p.errs = append(p.errs, &Error{File: at.file, Line: at.line, Key: key, Got: got, Expected: expected})
}

// closestKey guesses which key an unknown one was meant to be.
func closestKey(unknown string) string {
	best, distance := "", 3 // a key that differs more was not meant
	unknown = unknown[:min(len(unknown), 64)]
	last := unknown[strings.LastIndexByte(unknown, '.')+1:]
	for _, k := range keys {
		if k.Table != "" {
			if k.Last == last && unknown != last {
				return k.Name
			}
			if k.Last == unknown {
				return k.Name + " (in the table " + k.Title() + ")"
			}
			if d := smetrics.WagnerFischer(unknown, k.Table, 1, 1, 1); !strings.Contains(unknown, ".") && d < distance {
				best, distance = k.Title(), d
			}
		}
		if d := smetrics.WagnerFischer(unknown, k.Name, 1, 1, 1); d < distance {
			best, distance = k.Name, d
		}
	}
	if best == "" {
		return "one of the keys that `lockkeeper check-config --effective` lists"
	}
	return best
}
