// ---- strength: the slider's place is the picture's place in its sprite
for (const section of all(".strength")) {
  const words = data.strengths[Number(section.dataset.place)];
  const slider = find(".strength-slider", section);
  const attack = find(".strength-attack", section);

  function show() {
    const level = Number(slider.value);
    const chosen = attack ? Number(attack.value) : 0;
    for (const picture of all(".moving", section)) showFrame(picture, level);
    for (const part of all("[data-fading]", section)) part.hidden = Number(part.dataset.fading) !== chosen;
    for (const table of all(".levels", section)) {
      all("tbody tr", table).forEach((row, index) => {
        if (index === level) row.setAttribute("aria-current", "true");
        else row.removeAttribute("aria-current");
      });
    }
    find(".strength-words", section).textContent = words[chosen][level];
    slider.setAttribute("aria-valuetext", words[chosen][level]);
  }

  for (const controls of all(".strength-controls", section)) controls.hidden = false;
  slider.value = "0";
  if (attack) {
    attack.value = "0";
    attack.addEventListener("input", show);
  }
  slider.addEventListener("input", show);
  show();
}
