package explore

// progress runs states on to their rest, without faults.
type progress struct {
	*model
	ran, late int
}

func newProgress(m *model) *progress { return &progress{model: m} }

func (p *progress) run(key) string { return "" }
