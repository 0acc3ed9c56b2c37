package browser

import "strings"

// readable computes, as WCAG 2 does, the contrast of each text with what is behind it, and fails the test where that is less than
// 4.5, or 3 for large text.
func (tb *tab) readable(how string) {
	tb.t.Helper()
	weak := value[[]string](tb, `(() => {
		const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
		const rgba = (css) => { // whatever way a colour is written in
			canvas.clearRect(0, 0, 1, 1);
			canvas.fillStyle = css;
			canvas.fillRect(0, 0, 1, 1);
			const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
			return [r, g, b, a / 255];
		};
		const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3])).concat(1);
		const behind = (e) => {
			const layers = [];
			for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
			const paper = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
			return layers.reduceRight((below, top) => over(top, below), paper);
		};
		const light = (c) => {
			const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
			return 0.2126 * r + 0.7152 * g + 0.0722 * b;
		};
		const weak = [];
		let n = 0;
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (walk.nextNode()) {
			const e = walk.currentNode.parentElement;
			if (!walk.currentNode.data.trim() || !e.checkVisibility({visibilityProperty: true}) || e.closest("script, noscript")) continue;
			n++;
			const style = getComputedStyle(e), ground = behind(e), ink = over(rgba(style.color), ground);
			const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
			const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
			const large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
			if (ratio < (large ? 3 : 4.5)) weak.push(ratio.toFixed(2) + " " + e.tagName + "." + e.className + ": " + e.innerText.slice(0, 40));
		}
		if (n < 20) weak.push("only " + n + " texts were looked at");
		return weak.slice(0, 10);
	})()`)
	if len(weak) > 0 {
		tb.t.Errorf("%s: too little contrast:\n%s", how, strings.Join(weak, "\n"))
	}
}

// fits fails the test if the document is wider than the window: its reader would have to scroll sideways.
func (tb *tab) fits(width int) {
	tb.t.Helper()
	if got := value[int](tb, `document.documentElement.scrollWidth`); got > width {
		tb.t.Errorf("the document is %d wide, and the window %d: %s", got, width, value[string](tb, `[...document.querySelectorAll("body *")]
			.filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll")).slice(0, 5).map((e) => e.outerHTML.slice(0, 120)).join("\n")`))
	}
}
