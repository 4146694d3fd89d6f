package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/cli/migrate"
	"lockkeeper.dev/lockkeeper/packaging/render/intents"
)

// Fill returns a hand-written page in which each part replaces the text between its two marks,
// which are comments on lines of their own. It returns an error unless the page has the marks of
// exactly these parts, each once.
func Fill(page string, parts map[string]string) (string, error) {
	if have := strings.Count(page, beginMark); have != len(parts) {
		return "", fmt.Errorf("%d rendered parts, expected %d", have, len(parts))
	}
	for name, text := range parts {
		begin, end := beginMark+name+". Do not edit: make docs -->\n", "<!-- end of "+name+" -->\n"
		before, rest, begins := strings.Cut(page, begin)
		_, after, ends := strings.Cut(rest, end)
		if !begins || !ends {
			return "", fmt.Errorf("no place for the part %s: %s … %s", name, strings.TrimSpace(begin), strings.TrimSpace(end))
		}
		page = before + begin + "\n" + strings.TrimSpace(text) + "\n\n" + end + after
	}
	return page, nil
}

// Parts returns the rendered parts of each page of docs/, by the page's name and by their own.
func Parts() map[string]map[string]string {
	parts := map[string]map[string]string{
		"node-states.md": states(), "configuration.md": configuration(), "labels-and-annotations.md": labels(), "intents.md": intents.Tables(),
		"notifications.md": notifications(),
		"reasons.md":       {"reasons": reasons(), "blockers": blockers()},
		"events.md":        {"events": events()},
		"metrics.md":       {"metrics": metrics()},
		"other-owners.md":  {"marks": marks()},
		"drain.md":         {"exclusions": exclusions()},
		"hosts.md":         {"kubeconfigs": kubeconfigs()},
	}
	for _, tool := range migrate.Tools() {
		parts["from-"+string(tool)+".md"] = map[string]string{"settings": settings(tool)}
	}
	return parts
}

const beginMark = "<!-- rendered from code: "
