"""Scripts for the browser: what each view has to keep, as lists of where it does not, and the charts of a view."""

from __future__ import annotations

from typing import Final

#: Cells with a figure that is not on the right; numbers that are names are links, and a row of state has values of all
#: types in a column. Cards have no columns.
LEFT_FIGURES: Final = """
  [...document.querySelectorAll("td")]
    .filter((cell) => getComputedStyle(cell).display === "table-cell" && /^[-+]?[\\d,.]+$/.test(cell.innerText.trim()))
    .filter((cell) => cell.querySelector("a, pre") === null)
    .filter((cell) => getComputedStyle(cell).textAlign !== "right").map((cell) => cell.outerHTML)
"""
#: Visible texts whose contrast is below 4.5, or below 3 where they are large: the text, and its contrast. A canvas
#: turns any colour of CSS into bytes. Grounds with alpha lie upon those of the elements around them.
LOW_CONTRAST: Final = """
() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const bytes = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.unshift(bytes(getComputedStyle(each).backgroundColor));
    }
    return layers.reduce((below, layer) => over(layer, below), bytes("Canvas"));
  };
  const light = ([r, g, b]) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((c) => linear(c / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const low = [];
  const check = (element, text, pseudo) => {
    const style = getComputedStyle(element, pseudo);
    const box = element.getBoundingClientRect();
    const seen = element.checkVisibility({ visibilityProperty: true }) && box.width > 1 && box.right > 0;
    if (!text.trim() || !seen) {
      return;
    }
    const below = ground(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const [one, other] = [light(over(bytes(colour), below)), light(below)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? 3 : 4.5)) {
      low.push([text.trim().slice(0, 40), Math.round(contrast * 100) / 100]);
    }
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    check(texts.currentNode.parentElement, texts.currentNode.data, null);
  }
  for (const field of document.querySelectorAll("input, select")) {
    check(field, field.value, null);
    check(field, field.placeholder ?? "", "::placeholder");
  }
  return low;
}
"""
#: Neighbours in the order of focus of which the second one is above the first, or left of it in the same line. The
#: second of two columns begins above the end of the first.
BACKWARDS: Final = """
() => {
  const stops = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }))
    .filter((each) => !each.closest(".skip") && each.type !== "hidden");
  const places = stops.map((each) => each.getClientRects()[0]);
  return stops.slice(1).map((each, index) => [stops[index], each, places[index], places[index + 1]])
    .filter(([one, other, first, second]) => {
      const isAbove = second.bottom <= first.top && second.left < first.right;
      const isBefore = Math.abs(second.top - first.top) < 2 && second.right <= first.left;
      return isAbove || isBefore || other.tabIndex > 0;
    })
    .map(([one, other]) => [one.outerHTML.slice(0, 120), other.outerHTML.slice(0, 120)]);
}
"""
#: uPlot draws on canvas: its axes are read from what the page keeps.
DRAWN: Final = """
  [...document.querySelectorAll("figure.chart")].map((figure) => ({
    plots: figure.querySelectorAll("canvas").length,
    axes: [...figure.querySelectorAll(".axis")].map((axis) => axis.textContent),
    noun: figure.dataset.noun,
    values: [...figure.querySelectorAll("figcaption .key b")].map((value) => value.textContent),
    width: figure.querySelector(".u-wrap")?.getBoundingClientRect().width - figure.querySelector(".plot").clientWidth,
  }))
"""
