// The bookshop: history routes, a JSON API on another host, and everything that makes a page
// differ from visit to visit: the time, random numbers, timers, a cache-buster, a cart.
const API = "https://api.bookshop.example";
const CDN = "https://cdn.bookshop.example";
const main = document.getElementById("main");

// A random name for this visitor's cart: it goes into every request for the cart.
const cart = localStorage.cart ??= crypto.randomUUID();

const money = cents => "$" + (cents / 100).toFixed(2);
const escape = text => text.replace(/[&<>"]/g, sign => `&#${sign.charCodeAt()};`);
const get = path => fetch(API + path).then(answer => answer.json());

function card(book) {
  return `<li class="card"><a href="/book/${book.id}"><img src="${CDN}/cover/${book.id}.svg" alt="" width="120" height="160">
    <span><strong>${escape(book.title)}</strong><em>${escape(book.author)}</em></span></a><b>${money(book.cents)}</b></li>`;
}

async function home() {
  const books = await get("/books");
  main.innerHTML = `<section class="deal" aria-label="Deal of the moment"><h1>Deal of the moment</h1><p id="deal">in 3…</p></section>
    <h2>All books</h2><ul class="cards">${books.map(card).join("")}</ul>`;
  let left = 3;
  const timer = setInterval(() => {
    const deal = document.getElementById("deal");
    if (!deal) return clearInterval(timer);
    if (--left) return void (deal.textContent = `in ${left}…`);
    clearInterval(timer);
    const book = books[Math.floor(Math.random() * books.length)];
    deal.innerHTML = `<a href="/book/${book.id}">${escape(book.title)}</a> at ${Math.floor(5 + Math.random() * 40)}% off`;
  }, 100);
}

async function search(query) {
  const words = query.get("q") ?? "";
  const books = await get("/books?" + new URLSearchParams({ q: words }));
  main.innerHTML = `<h1>${books.length} ${books.length === 1 ? "book" : "books"} for “${escape(words)}”</h1>
    <ul class="cards">${books.map(card).join("")}</ul>`;
}

function stock(id) {
  // The old way: XMLHttpRequest with a cache-buster.
  const request = new XMLHttpRequest();
  request.open("GET", `${API}/stock?book=${id}&_=${Date.now()}`);
  request.onload = () => {
    const place = document.getElementById("stock");
    if (place) place.textContent = `${JSON.parse(request.responseText).left} in stock`;
  };
  request.send();
}

async function book(id) {
  const book = await get(`/books/${id}`);
  document.title = `${book.title} · The Still Bookshop`;
  main.innerHTML = `<article class="book"><img src="${CDN}/cover/${book.id}.svg" alt="Cover of ${escape(book.title)}" width="240" height="320">
    <div><h1>${escape(book.title)}</h1><p>by ${escape(book.author)}</p><p>${escape(book.blurb)}</p>
    <p class="price">${money(book.cents)} <small id="stock">…</small></p>
    <button id="add">Add to cart</button> <span id="added" role="status"></span></div></article>
    <iframe src="/reviews/${book.id}" title="Reviews" width="100%" height="140"></iframe>`;
  stock(book.id);
  document.getElementById("add").onclick = async () => {
    // JSON to another host: the browser asks for leave first (CORS preflight).
    await fetch(`${API}/cart?cart=${cart}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ book: book.id, quantity: 1 }),
    });
    document.getElementById("added").textContent = "In your cart.";
    await count();
  };
}

async function showCart() {
  const held = await count();
  document.title = "Cart · The Still Bookshop";
  main.innerHTML = `<h1>Your cart</h1>` + (held.lines.length
    ? `<table><tbody>${held.lines.map(line => `<tr><td>${escape(line.title)}</td><td>${line.quantity} ×</td><td>${money(line.cents)}</td></tr>`).join("")}</tbody></table>
       <p class="price">Total: ${money(held.total)}</p>`
    : `<p>There is nothing in it.</p>`);
}

async function count() {
  const held = await get(`/cart?cart=${cart}`);
  document.getElementById("cart-link").textContent = `Cart (${held.count})`;
  return held;
}

async function show() {
  const { pathname, searchParams } = new URL(location.href);
  document.title = "The Still Bookshop";
  const id = pathname.match(/^\/book\/(\d+)$/)?.[1];
  if (id) await book(Number(id));
  else if (pathname === "/search") await search(searchParams);
  else if (pathname === "/cart") return showCart();
  else await home();
  await count();
}

function go(address) {
  history.pushState(null, "", address);
  show();
}

document.addEventListener("click", event => {
  const link = event.target.closest("a");
  if (!link || link.origin !== location.origin || /^\/(newsletter|old-shop)/.test(link.pathname)) return;
  event.preventDefault();
  go(link.href);
});
document.getElementById("search").addEventListener("submit", event => {
  event.preventDefault();
  go("/search?" + new URLSearchParams(new FormData(event.target)));
});
addEventListener("popstate", show);

document.getElementById("clock").textContent = "Opened " + new Date().toUTCString();
document.getElementById("lucky").textContent = "Your lucky number is " + Math.floor(Math.random() * 1e6);
show();
