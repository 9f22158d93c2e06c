// Tables that are wider than a phone scroll in a box of their own, which the keyboard must reach, too.
document$.subscribe(() => {
  const watch = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) watch.observe(box);
});
