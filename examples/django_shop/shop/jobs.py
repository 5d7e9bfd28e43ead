"""The onejob App of the project, and its tasks; Django imports this module when it starts."""

from django.conf import settings

from onejob import App, Unique

app = App(settings.STORE_URL)


@app.task(unique=Unique(by="order_id"))
def send_invoice(order_id: int) -> int:
    """Write an invoice, once per order."""
    from shop.models import Invoice

    invoice, _ = Invoice.objects.get_or_create(order_id=order_id)
    return int(invoice.pk)
