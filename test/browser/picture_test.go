package browser

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// keep writes a picture into docs/images, if that is wanted; it has to be small, and is never empty.
func keep(t *testing.T, name string, picture []byte) {
	t.Helper()
	small := shrink(t, picture)
	if len(small) < 10<<10 || len(small) > 200<<10 {
		t.Errorf("%s has %d bytes", name, len(small))
	}
	if !*update {
		return
	}
	dir := filepath.Join("..", "..", "docs", "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), small, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shrink keeps 256 colours: those that are there most, and not two that look the same. The others, of the
// edges of letters, become the nearest of those.
func shrink(t *testing.T, picture []byte) []byte {
	t.Helper()
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	count := map[color.Color]int{}
	box := from.Bounds()
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			count[color.RGBAModel.Convert(from.At(x, y))]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	var kept color.Palette
	for _, c := range most {
		if len(kept) < 256 && (len(kept) == 0 || !alike(c, kept.Convert(c))) {
			kept = append(kept, c)
		}
	}
	to := image.NewPaletted(box, kept)
	index := map[color.Color]uint8{}
	for c := range count {
		index[c] = uint8(to.Palette.Index(c))
	}
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			to.SetColorIndex(x, y, index[color.RGBAModel.Convert(from.At(x, y))])
		}
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, to); err != nil {
		t.Fatal(err)
	}
	return small.Bytes()
}

func alike(a, b color.Color) bool {
	x, y := a.(color.RGBA), b.(color.RGBA)
	far := func(p, q uint8) int { return (int(p) - int(q)) * (int(p) - int(q)) }
	return far(x.R, y.R)+far(x.G, y.G)+far(x.B, y.B) < 64
}
