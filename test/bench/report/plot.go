package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A plot is a bar chart with a logarithmic scale: a group for each size of node, a bar for each series.
type plot struct {
	name, title, unit string
	sizes             []size
	series            []series
}

type series struct {
	title, unit string
	color       int // of the theme's
}

type theme struct {
	name, text, grid string
	colors           [3]string
}

var (
	light = theme{"light", "#1f2328", "#d1d9e0", [3]string{"#8c959f", "#0969da", "#1a7f37"}}
	dark  = theme{"dark", "#f0f6fc", "#3d444d", [3]string{"#9198a1", "#4493f8", "#3fb950"}}
)

// The picture's measures.
const (
	width, height           = 760, 340
	left, right, top, floor = 64, 16, 64, 292 // of the area of the bars
)

// draw returns the plot as SVG.
func (p plot) draw(t theme) string {
	least, most := math.Inf(1), 0.0
	for _, s := range p.sizes {
		for _, one := range p.series {
			v := math.Max(s.values[one.unit], 0.1)
			least, most = math.Min(least, v), math.Max(most, v)
		}
	}
	low, high := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	if low == high {
		high++
	}
	y := func(v float64) float64 {
		return floor - (math.Log10(math.Max(v, math.Pow(10, low)))-low)/(high-low)*(floor-top)
	}

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" font-family="system-ui, sans-serif" font-size="12" fill="%s" role="img" aria-label="%s">`+"\n",
		width, height, t.text, html.EscapeString(p.title))
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="14" font-weight="600">%s</text>`+"\n", left, html.EscapeString(p.title))
	x := left
	for _, one := range p.series {
		fmt.Fprintf(&b, `<rect x="%d" y="34" width="10" height="10" fill="%s"/><text x="%d" y="43">%s</text>`+"\n", x, t.colors[one.color], x+15, html.EscapeString(one.title))
		x += 35 + 7*len(one.title)
	}
	for power := low; power <= high; power++ {
		at := y(math.Pow(10, power))
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, width-right, at, at, t.grid, left-6, at+4, p.label(math.Pow(10, power)))
	}
	group := float64(width-left-right) / float64(len(p.sizes))
	bar := group * 0.7 / float64(len(p.series))
	for i, s := range p.sizes {
		from := float64(left) + group*(float64(i)+0.15)
		for j, one := range p.series {
			v := s.values[one.unit]
			at := from + bar*float64(j)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/><text x="%.1f" y="%.1f" text-anchor="middle" font-size="10">%s</text>`+"\n",
				at, y(v), bar-2, floor-y(v), t.colors[one.color], at+bar/2-1, y(v)-4, p.label(v))
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%d devices</text><text x="%.1f" y="%d" text-anchor="middle">%d pods</text>`+"\n",
			from+group*0.35, floor+18, s.devices, from+group*0.35, floor+34, s.pods)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// label writes a value with the largest unit that keeps it above one.
func (p plot) label(v float64) string {
	units := []string{"µs", "ms", "s"}
	i := 0
	if p.unit == "ms" {
		i = 1
	}
	for v >= 1000 && i < len(units)-1 {
		v, i = v/1000, i+1
	}
	return fmt.Sprintf("%.3g %s", v, units[i])
}
